//! Consumes with amqprs and its channel of messages.

use std::sync::Arc;

use amqprs::{
    channel::{BasicAckArguments, BasicConsumeArguments, BasicQosArguments, Channel, ConsumerMessage},
    connection::{Connection, OpenConnectionArguments},
};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{BoxError, CLOSE_DELAY, Mode, Plan};

pub(crate) async fn run(plan: &Plan) -> Result<(), BoxError> {
    let mut arguments = OpenConnectionArguments::try_from(plan.uri.as_str())?;
    // amqprs does not decode the `%2f` of a URI.
    arguments.virtual_host("/");
    let connection = Connection::open(&arguments).await?;
    let channel = connection.open_channel(None).await?;
    channel.basic_qos(BasicQosArguments::new(0, plan.prefetch, false)).await?;
    let mut arguments = BasicConsumeArguments::new(&plan.queue, "bench");
    arguments.no_ack = plan.mode == Mode::None;
    let (_tag, messages) = channel.basic_consume_rx(arguments).await?;
    if plan.work.is_zero() {
        in_place(plan, &channel, messages).await?;
    } else {
        in_tasks(plan, &channel, messages).await?;
    }
    tokio::time::sleep(CLOSE_DELAY).await;
    channel.close().await?;
    connection.close().await?;
    Ok(())
}

/// Returns the delivery tag and the body of a message.
fn parts(message: ConsumerMessage) -> Result<(u64, Vec<u8>), BoxError> {
    let tag = message.deliver.ok_or("the message has no delivery tag")?.delivery_tag();
    Ok((tag, message.content.ok_or("the message has no body")?))
}

async fn in_place(
    plan: &Plan,
    channel: &Channel,
    mut messages: UnboundedReceiver<ConsumerMessage>,
) -> Result<(), BoxError> {
    for nth in 1..=plan.messages {
        let (tag, body) = parts(messages.recv().await.ok_or("the consumer ended")?)?;
        plan.counter.on_start();
        plan.counter.on_done(&body);
        match plan.mode {
            Mode::Each => channel.basic_ack(BasicAckArguments::new(tag, false)).await?,
            Mode::Batch if plan.ends_batch(nth) => channel.basic_ack(BasicAckArguments::new(tag, true)).await?,
            Mode::Batch | Mode::None => {}
        }
    }
    Ok(())
}

async fn in_tasks(
    plan: &Plan,
    channel: &Channel,
    mut messages: UnboundedReceiver<ConsumerMessage>,
) -> Result<(), BoxError> {
    let permits = plan.permits();
    let mut received = 0;
    while received < plan.messages {
        let (tag, body) = parts(messages.recv().await.ok_or("the consumer ended")?)?;
        received += 1;
        let permit = Arc::clone(&permits).acquire_owned().await?;
        let (counter, work, channel) = (Arc::clone(&plan.counter), plan.work, channel.clone());
        tokio::spawn(async move {
            counter.on_start();
            tokio::time::sleep(work).await;
            counter.on_done(&body);
            if let Err(error) = channel.basic_ack(BasicAckArguments::new(tag, false)).await {
                eprintln!("{error}");
            }
            drop(permit);
        });
    }
    drop(permits.acquire_many(plan.workers as u32).await?);
    Ok(())
}
