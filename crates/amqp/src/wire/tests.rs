//! What is written is read again as it was; and no bytes whatever do harm.

use super::{
    frame::{self, Content},
    method::{Incoming, Outgoing},
    properties::Properties,
    table::{Cursor, Headers, Malformed, Value, put_table},
};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

fn value() -> impl Strategy<Value = Value> {
    let simple = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-1e300..1e300).prop_map(Value::Double),
        (any::<u8>(), any::<i32>()).prop_map(|(scale, digits)| Value::Decimal(scale, digits)),
        ".{0,40}".prop_map(Value::Text),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Value::Bytes(Bytes::from(bytes))),
        any::<u64>().prop_map(Value::Time),
        Just(Value::Void),
    ];
    simple.prop_recursive(4, 30, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            table_of(inner).prop_map(Value::Table),
        ]
    })
}

fn table_of(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Headers> {
    prop::collection::vec(("[a-z]{1,20}", value), 0..5).prop_map(|pairs| {
        let mut table = Headers::new();
        pairs.into_iter().for_each(|(name, value)| table.set(name, value));
        table
    })
}

fn properties() -> impl Strategy<Value = Properties> {
    let text = || prop::option::of(".{0,60}");
    let first = (
        text(),
        text(),
        table_of(value()),
        prop::option::of(any::<u8>()),
        prop::option::of(any::<u8>()),
        text(),
    );
    let second = (text(), text(), text(), prop::option::of(any::<u64>()), text(), text(), text());
    (first, second).prop_map(|(first, second)| Properties {
        content_type: first.0,
        content_encoding: first.1,
        headers: first.2,
        delivery_mode: first.3,
        priority: first.4,
        correlation_id: first.5,
        reply_to: second.0,
        expiration: second.1,
        message_id: second.2,
        timestamp: second.3,
        kind: second.4,
        user_id: second.5,
        app_id: second.6,
        latin: 0,
    })
}

/// Everything that bytes from outside go through.
fn read_all(bytes: &[u8], largest: usize) {
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = frame::cut(&mut buffer, largest) {
        match frame.content {
            Content::Method(payload) => {
                let _ = Incoming::read(&payload);
            }
            Content::Header(payload) => {
                let _ = frame::header(&payload);
            }
            Content::Body(_) | Content::Heartbeat => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn tables_are_read_as_they_were_written(table in table_of(value())) {
        let mut out = BytesMut::new();
        put_table(&mut out, &table);
        let mut cursor = Cursor::new(&out);
        prop_assert_eq!(cursor.table(), Ok(table));
        prop_assert!(cursor.is_empty());
    }

    #[test]
    fn content_is_read_as_it_was_written(
        properties in properties(),
        body in prop::collection::vec(any::<u8>(), 0..5000),
        largest in 1024usize..4096,
    ) {
        let mut out = BytesMut::new();
        frame::put_content(&mut out, 7, &properties, &body, largest);
        let mut read = Vec::new();
        let mut header = None;
        while let Some(frame) = frame::cut(&mut out, 1 << 20).unwrap() {
            prop_assert_eq!(frame.channel, 7);
            match frame.content {
                Content::Header(payload) => header = Some(frame::header(&payload).unwrap()),
                Content::Body(part) => {
                    prop_assert!(part.len() + frame::AROUND <= largest);
                    read.extend_from_slice(&part);
                }
                other => panic!("{other:?}"),
            }
        }
        prop_assert!(out.is_empty());
        prop_assert_eq!(header, Some((body.len() as u64, Ok(properties))));
        prop_assert_eq!(read, body);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600), largest in 8usize..4096) {
        read_all(&bytes, largest);
        let _ = Incoming::read(&bytes);
        let _ = frame::header(&bytes);
        let _ = Cursor::new(&bytes).table();
    }

    /// Frames that are right but for a byte here and there get further in.
    #[test]
    fn damaged_frames_are_survived(
        properties in properties(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut out = BytesMut::new();
        let arguments = properties.headers.clone();
        frame::put_method(&mut out, 1, &Outgoing::QueueDeclare { name: "queue", flags: 0, arguments: &arguments });
        frame::put_content(&mut out, 1, &properties, b"body", 4096);
        for (at, byte) in damage {
            let at = at.index(out.len());
            out[at] = byte;
        }
        read_all(&out[..cut.index(out.len() + 1)], 1 << 17);
    }
}

#[test]
fn a_frame_comes_in_any_pieces() {
    let mut whole = BytesMut::new();
    frame::put_method(&mut whole, 3, &Outgoing::ChannelOpen);
    frame::put_heartbeat(&mut whole);
    let mut buffer = BytesMut::new();
    let mut frames = 0;
    for byte in whole {
        buffer.extend_from_slice(&[byte]);
        frames += usize::from(frame::cut(&mut buffer, 4096).unwrap().is_some());
    }
    assert_eq!(frames, 2);
}

#[test]
fn what_no_frame_may_be() {
    let check = |bytes: &[u8], why: &str| {
        let error = frame::cut(&mut BytesMut::from(bytes), 4096).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    };
    check(b"AMQP\x00\x01\x00\x00", "version");
    check(&[1, 0, 0, 0xff, 0xff, 0xff, 0xff], "larger");
    check(&[1, 0, 0, 0, 0, 0, 0, 0], "no end");
    check(&[9, 0, 0, 0, 0, 0, 0, 0xce], "kind");
}

#[test]
fn tables_in_tables_have_a_bound() {
    let mut deep = Value::Void;
    for _ in 0..100 {
        deep = Value::Array(vec![deep]);
    }
    let mut out = BytesMut::new();
    let mut table = Headers::new();
    table.set("deep", deep);
    put_table(&mut out, &table);
    assert!(matches!(Cursor::new(&out).table(), Err(Malformed(_))));
}

#[test]
fn kinds_of_numbers_that_others_write() {
    let check = |bytes: &[u8], want: Value| {
        let mut out = vec![0, 0, 0, bytes.len() as u8 + 2, 1, b'n'];
        out.extend_from_slice(bytes);
        let table = Cursor::new(&out).table().unwrap();
        assert_eq!(table.get("n"), Some(&want), "{bytes:?}");
    };
    check(b"b\xff", Value::Int(-1));
    check(b"B\xff", Value::Int(255));
    check(b"s\xff\xfe", Value::Int(-2));
    check(b"u\xff\xfe", Value::Int(65534));
    check(b"I\xff\xff\xff\xff", Value::Int(-1));
    check(b"i\xff\xff\xff\xff", Value::Int(4_294_967_295));
    check(b"f\x3f\x80\x00\x00", Value::Double(1.0));
    check(b"S\x00\x00\x00\x02\xff\xfe", Value::Bytes(Bytes::from_static(b"\xff\xfe")));
}
