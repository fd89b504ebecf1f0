//! Consumes with lapin, with or without its automatic recovery.

use std::sync::Arc;

use futures_lite::StreamExt;
use lapin::{Channel, Connection, ConnectionProperties, Consumer, message::Delivery, options::*, types::FieldTable};

use crate::{BoxError, CLOSE_DELAY, Mode, Plan};

pub(crate) async fn run(plan: &Plan, recovering: bool) -> Result<(), BoxError> {
    let properties = ConnectionProperties::default();
    let properties = if recovering { properties.enable_auto_recover() } else { properties };
    let connection = Connection::connect(&plan.uri, properties).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(plan.prefetch, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions { no_ack: plan.mode == Mode::None, ..Default::default() };
    let queue = plan.queue.as_str().into();
    let consumer = channel.basic_consume(queue, "bench".into(), options, FieldTable::default()).await?;
    if plan.work.is_zero() {
        in_place(plan, consumer).await?;
    } else {
        in_tasks(plan, consumer, recovering.then_some(&channel)).await?;
    }
    tokio::time::sleep(CLOSE_DELAY).await;
    connection.close(200, "".into()).await?;
    Ok(())
}

async fn in_place(plan: &Plan, mut consumer: Consumer) -> Result<(), BoxError> {
    for nth in 1..=plan.messages {
        let delivery = consumer.next().await.ok_or("the consumer ended")??;
        plan.counter.on_start();
        plan.counter.on_done(&delivery.data);
        match plan.mode {
            Mode::Each => {
                delivery.ack(BasicAckOptions::default()).await?;
            }
            Mode::Batch if plan.ends_batch(nth) => {
                delivery.ack(BasicAckOptions { multiple: true }).await?;
            }
            Mode::Batch | Mode::None => {}
        }
    }
    Ok(())
}

async fn in_tasks(plan: &Plan, mut consumer: Consumer, recovers: Option<&Channel>) -> Result<(), BoxError> {
    let permits = plan.permits();
    let mut received = 0;
    while received < plan.messages {
        let delivery: Delivery = match (consumer.next().await.ok_or("the consumer ended")?, recovers) {
            (Ok(delivery), _) => delivery,
            (Err(error), Some(channel)) => {
                channel.wait_for_recovery(error).await?;
                continue;
            }
            (Err(error), None) => return Err(error.into()),
        };
        received += 1;
        let permit = Arc::clone(&permits).acquire_owned().await?;
        let (counter, work) = (Arc::clone(&plan.counter), plan.work);
        tokio::spawn(async move {
            counter.on_start();
            tokio::time::sleep(work).await;
            counter.on_done(&delivery.data);
            if let Err(error) = delivery.ack(BasicAckOptions::default()).await {
                eprintln!("{error}");
            }
            drop(permit);
        });
    }
    drop(permits.acquire_many(plan.workers as u32).await?);
    Ok(())
}
