//! Checks for the fuzz targets in `fuzz/`. Not part of the public API.
//!
//! Each function takes any bytes and panics if an invariant fails. Output is compared as bytes, because of NaN.

use crate::{
    json_form,
    net::replay,
    uri::Endpoint,
    wire::{
        frame,
        method::{Incoming, Outgoing},
        properties::Properties,
        table::{Cursor, FieldValue, put_table},
    },
};
use bytes::BytesMut;

/// Checks that a connection reads the same in any pieces, and that a handshake ends.
pub fn frames(sizes: &[u8], bytes: &[u8]) {
    let endpoint: Endpoint = "amqp://localhost".parse().expect("a valid URI");
    let whole = replay::read(&endpoint, std::iter::once(bytes));
    let mut rest = bytes;
    let mut sizes = sizes.iter().cycle().map(|size| usize::from(*size) + 1);
    let pieces = std::iter::from_fn(|| {
        let (piece, after) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    });
    assert_eq!(whole, replay::read(&endpoint, pieces), "pieces are read differently");
    // Bounds the bytes sent for the bytes received: each frame has at least eight bytes.
    assert!(whole.sent.len() <= bytes.len() * 16, "{} bytes cause {} sent", bytes.len(), whole.sent.len());
    replay::handshake(&endpoint, bytes);
}

/// Checks that a method is read or refused, and that methods of both directions are written as read.
pub fn method(payload: &[u8]) {
    let Ok(method) = Incoming::read(payload) else { return };
    let again = match &method {
        Incoming::Close { code, text } => Outgoing::Close { code: *code, text },
        Incoming::CloseOk => Outgoing::CloseOk,
        Incoming::ChannelCloseOk => Outgoing::ChannelCloseOk,
        Incoming::Ack { tag, multiple } => Outgoing::Ack { tag: *tag, multiple: *multiple },
        Incoming::Nack { tag, multiple } => Outgoing::Nack { tag: *tag, multiple: *multiple, requeue: false },
        _ => return,
    };
    let found = Incoming::read(&encoded(|out| again.write(out))).expect("written bytes can be read");
    // Text that is not UTF-8 is read as Latin-1, and may be too long as UTF-8.
    if !matches!(&method, Incoming::Close { text, .. } if !text.is_ascii()) {
        assert_eq!(found, method);
    }
}

/// Checks that the properties of a message are written as read, with types and order, also through JSON.
pub fn properties(payload: &[u8]) {
    let mut properties = Properties::default();
    let Ok((_, None)) = frame::header(payload, &mut properties) else { return };
    let written = encoded(|out| properties.write(out));
    let mut again = Properties::default();
    again.read(&mut Cursor::new(&written)).expect("written bytes can be read");
    assert_eq!(encoded(|out| again.write(out)), written, "{properties:?} is written as {again:?}");
    assert!(written.len() <= payload.len(), "{} bytes become {}", payload.len(), written.len());
    assert_eq!(again.too_long(), None, "{properties:?}");
    let json = json_form::properties(&properties).to_string();
    let mut restored = json_form::read_properties(&serde_json::from_str(&json).expect("JSON"))
        .unwrap_or_else(|why| panic!("{json}: {why}"));
    restored.headers = properties.headers;
    assert_eq!(encoded(|out| restored.write(out)), written, "{json}");
}

/// Checks that a table is written as read; through JSON too, except for the bits of NaN.
pub fn table(bytes: &[u8]) {
    let Ok(table) = Cursor::new(bytes).table() else { return };
    let written = encoded(|out| put_table(out, &table));
    assert!(written.len() <= bytes.len(), "{} bytes become {}", bytes.len(), written.len());
    let again = Cursor::new(&written).table().expect("written bytes can be read");
    assert_eq!(written, encoded(|out| put_table(out, &again)), "{table:?} is read as {again:?}");
    let shown: Vec<String> = table.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(shown.len(), table.len());
    if table.iter().any(|(_, value)| has_nan(value)) {
        return;
    }
    let json = json_form::headers(&table).to_string();
    let restored = json_form::read_headers(&serde_json::from_str(&json).expect("JSON"))
        .unwrap_or_else(|why| panic!("{json}: {why}"));
    assert_eq!(encoded(|out| put_table(out, &restored)), written, "{json}");
}

/// Checks that a URI is parsed or refused, that its displayed form is equal, and that neither shows the password.
pub fn uri(text: &str) {
    /// Occurs in no message about URIs.
    const SECRET: &str = "x7Qz9Kw2";
    match text.parse::<Endpoint>() {
        Ok(endpoint) => {
            let shown = endpoint.to_string();
            let again: Endpoint = shown.parse().unwrap_or_else(|why| panic!("{shown} is refused: {why}"));
            let parts =
                |one: &Endpoint| (one.host.clone(), one.port, one.user.clone(), one.vhost.clone(), one.tls.is_some());
            assert_eq!(parts(&again), parts(&endpoint), "{shown}");
        }
        Err(why) => assert!(!why.to_string().contains(SECRET), "{why}"),
    }
    // A password may be anywhere, also where it should have been escaped.
    for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
        let (before, after) = text.split_at(at);
        if let Err(why) = format!("{before}{SECRET}{after}").parse::<Endpoint>() {
            assert!(!why.to_string().contains(SECRET), "{why}");
        }
    }
}

fn has_nan(value: &FieldValue) -> bool {
    match value {
        FieldValue::Float(number) => number.is_nan(),
        FieldValue::Double(number) => number.is_nan(),
        FieldValue::Array(values) => values.iter().any(has_nan),
        FieldValue::Table(table) => table.iter().any(|(_, value)| has_nan(value)),
        _ => false,
    }
}

fn encoded(write: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::new();
    write(&mut out);
    out
}
