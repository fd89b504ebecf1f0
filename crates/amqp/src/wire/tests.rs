//! Round trips: written values are read unchanged, and no input causes a panic.

use super::{
    frame::{self, Content},
    method::{Incoming, Outgoing},
    properties::Properties,
    table::{Cursor, FieldValue, Headers, put_table},
};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

fn value() -> impl Strategy<Value = FieldValue> {
    let simple = prop_oneof![
        any::<bool>().prop_map(FieldValue::Bool),
        any::<i64>().prop_map(FieldValue::Int),
        any::<i8>().prop_map(FieldValue::Int8),
        any::<u8>().prop_map(FieldValue::UInt8),
        any::<i16>().prop_map(FieldValue::Int16),
        any::<u16>().prop_map(FieldValue::UInt16),
        any::<i32>().prop_map(FieldValue::Int32),
        any::<u32>().prop_map(FieldValue::UInt32),
        (-1e300..1e300).prop_map(FieldValue::Double),
        (any::<u8>(), any::<i32>()).prop_map(|(scale, digits)| FieldValue::Decimal(scale, digits)),
        ".{0,40}".prop_map(FieldValue::Text),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| FieldValue::Bytes(Bytes::from(bytes))),
        any::<u64>().prop_map(FieldValue::Time),
        Just(FieldValue::Void),
    ];
    simple.prop_recursive(4, 30, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(FieldValue::Array),
            table_of(inner).prop_map(FieldValue::Table),
        ]
    })
}

fn table_of(value: impl Strategy<Value = FieldValue>) -> impl Strategy<Value = Headers> {
    prop::collection::vec(("[a-z]{1,20}", value), 0..5).prop_map(|pairs| {
        let mut table = Headers::new();
        pairs.into_iter().for_each(|(name, value)| table.set(name, value));
        table
    })
}

fn properties() -> impl Strategy<Value = Properties> {
    let text = || prop::option::of(".{0,60}");
    let first =
        (text(), text(), table_of(value()), prop::option::of(any::<u8>()), prop::option::of(any::<u8>()), text());
    let second = (text(), text(), text(), prop::option::of(any::<u64>()), text(), text(), text(), text());
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
        cluster_id: second.7,
        latin: 0,
    })
}

/// All decoding that received bytes go through.
fn read_all(bytes: &[u8], largest: usize) {
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = frame::cut(&mut buffer, largest) {
        match frame.content {
            Content::Method(payload) => {
                let _ = Incoming::read(&payload);
            }
            Content::Header(payload) => {
                let _ = frame::header(&payload, &mut Properties::default());
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
        let (mut header, mut found) = (None, Properties::default());
        while let Some(frame) = frame::cut(&mut out, 1 << 20).unwrap() {
            prop_assert_eq!(frame.channel, 7);
            match frame.content {
                Content::Header(payload) => header = Some(frame::header(&payload, &mut found).unwrap()),
                Content::Body(part) => {
                    prop_assert!(part.len() + frame::FRAME_OVERHEAD <= largest);
                    read.extend_from_slice(&part);
                }
                other => panic!("{other:?}"),
            }
        }
        prop_assert!(out.is_empty());
        prop_assert_eq!(header, Some((body.len() as u64, None)));
        prop_assert_eq!(found, properties);
        prop_assert_eq!(read, body);
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), largest in 8usize..4096) {
        read_all(&bytes, largest);
        let _ = Incoming::read(&bytes);
        let _ = frame::header(&bytes, &mut Properties::default());
        let _ = Cursor::new(&bytes).table();
    }

    /// Nearly valid frames reach more of the decoder.
    #[test]
    fn damaged_frames_cause_no_panic(
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
fn frame_is_read_when_complete_in_any_pieces() {
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
fn invalid_frames_are_refused_with_the_reason() {
    let check = |bytes: &[u8], why: &str| {
        let error = frame::cut(&mut BytesMut::from(bytes), 4096).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    };
    check(b"AMQP\x00\x01\x00\x00", "version");
    // While it may be a protocol header, it is not read as a frame.
    for end in 0..8 {
        assert_eq!(frame::cut(&mut BytesMut::from(&b"AMQP\xff\xff\xff\xff"[..end]), 4096), Ok(None), "{end}");
    }
    check(&[1, 0, 0, 0xff, 0xff, 0xff, 0xff], "larger");
    check(&[1, 0, 0, 0, 0, 0, 0, 0], "end byte");
    check(&[9, 0, 0, 0, 0, 0, 0, 0xce], "unknown type");
}

fn nested(depth: usize, is_table: bool) -> FieldValue {
    (0..depth).fold(FieldValue::Int(7), |inner, _| match is_table {
        true => FieldValue::Table(Headers::new().with("in", inner)),
        false => FieldValue::Array(vec![inner]),
    })
}

#[test]
fn headers_nested_deeper_than_32_are_kept_as_bytes_with_all_properties() {
    for is_table in [false, true] {
        for (depth, is_read) in [(1, true), (32, true), (33, false), (34, false), (5_000, false)] {
            let headers = Headers::new().with("deep", nested(depth, is_table)).with("beside", "x");
            let sent = Properties { message_id: Some("m-1".to_owned()), headers, ..Properties::default() };
            let mut out = BytesMut::new();
            sent.write(&mut out);
            let mut found = Properties::default();
            found.read(&mut Cursor::new(&out)).unwrap();
            assert_eq!(found.message_id.as_deref(), Some("m-1"));
            assert_eq!(found.headers.get("beside").and_then(FieldValue::as_str), Some("x"));
            assert_eq!(found == sent, is_read, "{depth}");
            let shown = found.headers.get("deep").unwrap().to_string();
            assert_eq!(shown.contains("(nested deeper than 32)"), !is_read, "{shown}");
            // It is written unchanged.
            let mut again = BytesMut::new();
            found.write(&mut again);
            assert_eq!(again, out, "{depth}");
        }
    }
}

#[test]
fn header_names_that_are_not_utf8_are_written_unchanged() {
    // As UTF-8 this name would be longer than a name may be.
    let mut table = vec![200];
    table.extend([0xe9; 200]);
    table.push(b'V');
    let mut sent = (table.len() as u32).to_be_bytes().to_vec();
    sent.extend(table);
    let read = Cursor::new(&sent).table().unwrap();
    assert_eq!(read.get(&"é".repeat(200)), Some(&FieldValue::Void));
    let mut again = BytesMut::new();
    put_table(&mut again, &read);
    assert_eq!(again, sent);
    let properties = Properties { headers: read, ..Properties::default() };
    assert_eq!(properties.too_long(), None);
}

#[test]
fn values_keep_their_type_when_they_are_written_again() {
    let check = |bytes: &[u8], expected: FieldValue| {
        let mut out = vec![0, 0, 0, bytes.len() as u8 + 2, 1, b'n'];
        out.extend_from_slice(bytes);
        let table = Cursor::new(&out).table().unwrap();
        assert_eq!(table.get("n"), Some(&expected), "{bytes:?}");
        let mut again = BytesMut::new();
        put_table(&mut again, &table);
        assert_eq!(again, out, "{expected:?}");
    };
    check(b"t\x01", FieldValue::Bool(true));
    check(b"b\xff", FieldValue::Int8(-1));
    check(b"B\xff", FieldValue::UInt8(255));
    check(b"s\xff\xfe", FieldValue::Int16(-2));
    check(b"u\xff\xfe", FieldValue::UInt16(65534));
    check(b"I\xff\xff\xff\xff", FieldValue::Int32(-1));
    check(b"i\xff\xff\xff\xff", FieldValue::UInt32(4_294_967_295));
    check(b"l\xff\xff\xff\xff\xff\xff\xff\xff", FieldValue::Int(-1));
    check(b"f\x3f\x80\x00\x00", FieldValue::Float(1.0));
    check(b"d\x3f\xf0\x00\x00\x00\x00\x00\x00", FieldValue::Double(1.0));
    check(b"S\x00\x00\x00\x02\xff\xfe", FieldValue::RawText(Bytes::from_static(b"\xff\xfe")));
    check(b"x\x00\x00\x00\x02\xff\xfe", FieldValue::Bytes(Bytes::from_static(b"\xff\xfe")));
}
