//! Formats messages as JSON with every property and header type, so that they can be published again.
//!
//! `properties` has those that are set, by their AMQP names. `headers` is a list of `{"name", "type", "value"}`, in the
//! order of the message. The body is `payload` if it is text, else `payload_hex`. Text that is not UTF-8 is `{"hex":
//! "…"}`. Dead letters of earlier versions have headers as an object of texts, and no properties.

use crate::{
    delivery::Delivery,
    message::Message,
    wire::{
        properties::Properties,
        table::{Field, FieldValue, Headers, to_latin1},
    },
};
use bytes::Bytes;
use serde_json::{Map, Value as Json, json};

pub(crate) fn write(delivery: &Delivery) -> Json {
    let (payload, body) = match std::str::from_utf8(delivery.body()) {
        Ok(text) => ("payload", text.to_owned()),
        Err(_) => ("payload_hex", hex(delivery.body())),
    };
    json!({
        "exchange": delivery.exchange(),
        "routing_key": delivery.routing_key(),
        "properties": properties(delivery.properties()),
        "headers": headers(delivery.headers()),
        payload: body,
    })
}

pub(crate) fn properties(properties: &Properties) -> Json {
    let mut object = Map::new();
    for (name, bit, text) in properties.texts() {
        let Some(text) = text else { continue };
        let value = match to_latin1(text).filter(|_| properties.latin & bit != 0) {
            Some(bytes) => json!({"hex": hex(&bytes)}),
            None => text.as_str().into(),
        };
        object.insert(name.to_owned(), value);
    }
    let numbers = [
        ("delivery_mode", properties.delivery_mode.map(u64::from)),
        ("priority", properties.priority.map(u64::from)),
        ("timestamp", properties.timestamp),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            object.insert(name.to_owned(), number.into());
        }
    }
    Json::Object(object)
}

pub(crate) fn headers(headers: &Headers) -> Json {
    let entry = |field: &Field| {
        let mut entry = typed(&field.value);
        let name = match field.is_latin {
            true => json!({"hex": hex(&field.name_bytes())}),
            false => field.name.as_str().into(),
        };
        entry.insert("name".to_owned(), name);
        Json::Object(entry)
    };
    Json::Array(headers.fields().iter().map(entry).collect())
}

fn typed(value: &FieldValue) -> Map<String, Json> {
    let mut object = Map::new();
    object.insert("type".to_owned(), value.kind().1.into());
    let value = match value {
        FieldValue::Bool(value) => (*value).into(),
        FieldValue::Float(value) => real(f64::from(*value)),
        FieldValue::Double(value) => real(*value),
        FieldValue::Decimal(scale, digits) => json!({"scale": scale, "digits": digits}),
        FieldValue::Text(text) => text.as_str().into(),
        FieldValue::RawText(bytes) => json!({"hex": hex(bytes)}),
        FieldValue::Bytes(bytes) | FieldValue::DeepTable(bytes) | FieldValue::DeepArray(bytes) => hex(bytes).into(),
        FieldValue::Time(seconds) => (*seconds).into(),
        FieldValue::Array(values) => Json::Array(values.iter().map(|value| Json::Object(typed(value))).collect()),
        FieldValue::Table(table) => headers(table),
        FieldValue::Void => Json::Null,
        integer => integer.as_int().into(),
    };
    object.insert("value".to_owned(), value);
    object
}

/// JSON has no infinities and no NaN: these are text.
fn real(value: f64) -> Json {
    if value.is_finite() { json!(value) } else { value.to_string().into() }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads a message; the error names the invalid part.
pub(crate) fn read(json: &Json) -> Result<Message, String> {
    let text = |name: &str| json[name].as_str().map(str::to_owned);
    let body = match (&json["payload"], &json["payload_hex"]) {
        (Json::String(text), _) => Bytes::from(text.clone().into_bytes()),
        (_, Json::String(hex)) => unhex(hex).ok_or("payload_hex is not hexadecimal")?.into(),
        _ => return Err("neither payload nor payload_hex is present".to_owned()),
    };
    let mut properties = match &json["properties"] {
        Json::Null => Properties { delivery_mode: Some(2), ..Properties::default() },
        found => read_properties(found)?,
    };
    properties.headers = match &json["headers"] {
        Json::Object(texts) => texts
            .iter()
            .fold(Headers::new(), |all, (name, value)| all.with(name.as_str(), value.as_str().unwrap_or_default())),
        Json::Null => Headers::new(),
        list => read_headers(list)?,
    };
    Ok(Message {
        exchange: text("exchange").unwrap_or_default(),
        key: text("routing_key").unwrap_or_default(),
        properties,
        body,
    })
}

pub(crate) fn read_properties(json: &Json) -> Result<Properties, String> {
    let mut properties = Properties::default();
    for (name, value) in json.as_object().ok_or("properties is not an object")? {
        let invalid = || format!("property {name} has the invalid value {value}");
        match name.as_str() {
            "delivery_mode" => properties.delivery_mode = Some(number(value).ok_or_else(invalid)?),
            "priority" => properties.priority = Some(number(value).ok_or_else(invalid)?),
            "timestamp" => properties.timestamp = Some(value.as_u64().ok_or_else(invalid)?),
            name => {
                let raw = value["hex"].as_str().map(|text| unhex(text).ok_or_else(invalid)).transpose()?;
                let text = match &raw {
                    Some(bytes) => bytes.iter().map(|byte| char::from(*byte)).collect(),
                    None => value.as_str().ok_or_else(invalid)?.to_owned(),
                };
                let (slot, bit) = properties.text_mut(name).ok_or_else(invalid)?;
                *slot = Some(text);
                properties.latin |= if raw.is_some() { bit } else { 0 };
            }
        }
    }
    Ok(properties)
}

pub(crate) fn read_headers(json: &Json) -> Result<Headers, String> {
    let mut headers = Headers::new();
    for entry in json.as_array().ok_or("headers is not a list")? {
        let name = match &entry["name"] {
            Json::String(name) => Some(name.clone().into_bytes()),
            raw => raw["hex"].as_str().and_then(unhex),
        };
        let name = name.ok_or_else(|| format!("a header has no name: {entry}"))?;
        headers.push_bytes(&name, read_value(entry)?);
    }
    Ok(headers)
}

fn number<T: TryFrom<i64>>(value: &Json) -> Option<T> {
    T::try_from(value.as_i64()?).ok()
}

fn read_value(entry: &Json) -> Result<FieldValue, String> {
    let value = &entry["value"];
    let float = || value.as_f64().or_else(|| value.as_str()?.parse().ok());
    let read = || {
        Some(match entry["type"].as_str()? {
            "bool" => FieldValue::Bool(value.as_bool()?),
            "int" => FieldValue::Int(value.as_i64()?),
            "int8" => FieldValue::Int8(number(value)?),
            "uint8" => FieldValue::UInt8(number(value)?),
            "int16" => FieldValue::Int16(number(value)?),
            "uint16" => FieldValue::UInt16(number(value)?),
            "int32" => FieldValue::Int32(number(value)?),
            "uint32" => FieldValue::UInt32(number(value)?),
            "float" => FieldValue::Float(float()? as f32),
            "double" => FieldValue::Double(float()?),
            "decimal" => FieldValue::Decimal(number(&value["scale"])?, number(&value["digits"])?),
            "text" => match value.as_str() {
                Some(text) => FieldValue::Text(text.to_owned()),
                None => FieldValue::RawText(unhex(value["hex"].as_str()?)?.into()),
            },
            "bytes" => FieldValue::Bytes(unhex(value.as_str()?)?.into()),
            "time" => FieldValue::Time(value.as_u64()?),
            "void" => FieldValue::Void,
            "deep_table" => FieldValue::DeepTable(unhex(value.as_str()?)?.into()),
            "deep_array" => FieldValue::DeepArray(unhex(value.as_str()?)?.into()),
            _ => return None,
        })
    };
    match entry["type"].as_str() {
        Some("array") => {
            let values = value.as_array().ok_or("the value of an array is not a list")?;
            Ok(FieldValue::Array(values.iter().map(read_value).collect::<Result<_, _>>()?))
        }
        Some("table") => Ok(FieldValue::Table(read_headers(value)?)),
        _ => read().ok_or_else(|| format!("invalid header value: {entry}")),
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Received;

    fn delivery(properties: Properties, body: &'static [u8]) -> Delivery {
        let received = Received {
            tag: 1,
            redelivered: false,
            exchange: "shop".to_owned(),
            key: "order.created".to_owned(),
            properties,
            body: Bytes::from_static(body),
            ..Received::default()
        };
        Delivery::new(&"orders".into(), Box::new(received))
    }

    fn every_type() -> Headers {
        let nested = Headers::new().with("inner", true).with("again", Headers::new().with("x", 1i64));
        let values = [
            FieldValue::Bool(true),
            FieldValue::Int(i64::MIN),
            FieldValue::Int8(-1),
            FieldValue::UInt8(255),
            FieldValue::Int16(-2),
            FieldValue::UInt16(65_535),
            FieldValue::Int32(i32::MIN),
            FieldValue::UInt32(u32::MAX),
            FieldValue::Float(0.1),
            FieldValue::Double(0.1),
            // A parser that rounds slightly wrong returns a different number.
            FieldValue::Double(5.518_027_000_319_834e250),
            FieldValue::Double(f64::NEG_INFINITY),
            FieldValue::Decimal(2, 314),
            FieldValue::Text("é\0".to_owned()),
            FieldValue::RawText(Bytes::from_static(b"\xff\xfe")),
            FieldValue::Bytes(Bytes::from_static(b"text")),
            FieldValue::Time(u64::MAX),
            FieldValue::Array(vec![FieldValue::Int32(1), FieldValue::Void]),
            FieldValue::Table(nested),
            FieldValue::Void,
            FieldValue::DeepTable(Bytes::from_static(b"\x01aV")),
            FieldValue::DeepArray(Bytes::from_static(b"V")),
        ];
        let numbered = values.into_iter().enumerate();
        let mut all = numbered.fold(Headers::new(), |all, (at, value)| all.with(format!("h{at:02}"), value));
        all.push_bytes(b"\xe9", FieldValue::Void);
        all
    }

    #[test]
    fn stored_message_keeps_every_property_and_header_with_its_type() {
        let text = |text: &str| Some(text.to_owned());
        let mut properties = Properties {
            content_type: text("application/json"),
            content_encoding: text("gzip"),
            headers: every_type(),
            delivery_mode: Some(1),
            priority: Some(9),
            correlation_id: text("c"),
            reply_to: text("r"),
            expiration: text("60000"),
            message_id: text("\u{ff}\u{fe}"),
            timestamp: Some(1_700_000_000),
            kind: text("created"),
            user_id: text("u"),
            app_id: text("a"),
            cluster_id: text("k"),
            latin: 0,
        };
        properties.latin = properties.texts().iter().find(|(name, ..)| *name == "message_id").unwrap().1;
        for body in [&b"{\"id\": 1}"[..], b"\xff\x00", b""] {
            let written = write(&delivery(properties.clone(), body)).to_string();
            let read = read(&serde_json::from_str(&written).unwrap()).unwrap();
            assert_eq!(read.properties, properties, "{written}");
            assert_eq!((read.exchange.as_str(), read.key.as_str()), ("shop", "order.created"));
            assert_eq!(read.body, body);
        }
    }
}
