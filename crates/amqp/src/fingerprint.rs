//! Identifies a redelivered message by a hash of everything its publisher wrote.

use crate::{delivery::Delivery, wire::table::Headers};
use bytes::BytesMut;

/// 128 bits of BLAKE3. Equal messages have equal fingerprints.
pub(crate) type Fingerprint = [u8; 16];

/// Headers that brokers add on delivery.
const COUNTERS: [&str; 3] = ["x-delivery-count", "x-acquired-count", "x-stream-offset"];

/// Hashes the offset of a message in a stream, else its content without the broker's counters.
pub(crate) fn fingerprint(delivery: &Delivery, offset: Option<u64>) -> Fingerprint {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    match offset {
        Some(offset) => part(&offset.to_le_bytes()),
        None => {
            part(delivery.exchange().as_bytes());
            part(delivery.routing_key().as_bytes());
            let mut properties = delivery.properties().clone();
            let mut headers: Vec<_> = properties.headers.iter().filter(|(name, _)| !COUNTERS.contains(name)).collect();
            // A broker may reorder headers when it adds one.
            headers.sort_by_key(|(name, _)| *name);
            let sorted = headers.into_iter().map(|(name, value)| (name.to_owned(), value.clone()));
            properties.headers = sorted.fold(Headers::new(), |all, (name, value)| all.with(name, value));
            let mut bytes = BytesMut::new();
            properties.write(&mut bytes);
            part(&bytes);
            part(delivery.body());
            // Unreadable properties are empty, so the reason is hashed instead.
            if let Some(why) = delivery.unreadable_properties() {
                part(why.as_bytes());
            }
        }
    }
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    fingerprint
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{net::Received, wire::properties::Properties};

    fn of(body: &'static str, headers: &[(&str, i64)], id: Option<&str>, redelivered: bool) -> Fingerprint {
        let headers = headers.iter().fold(Headers::new(), |all, (name, value)| all.with(*name, *value));
        let properties = Properties { headers, message_id: id.map(str::to_owned), ..Properties::default() };
        let received = Received {
            tag: 1,
            redelivered,
            exchange: String::new(),
            key: "q".to_owned(),
            properties,
            body: body.into(),
            ..Received::default()
        };
        fingerprint(&Delivery::new(&"q".into(), Box::new(received)), None)
    }

    #[test]
    fn fingerprint_is_the_same_for_every_delivery_of_a_message() {
        let first = of("body", &[("b", 1), ("a", 2)], Some("id"), false);
        assert_eq!(first, of("body", &[("x-delivery-count", 3), ("a", 2), ("b", 1)], Some("id"), true));
        assert_ne!(first, of("body", &[("b", 1), ("a", 3)], Some("id"), true));
        assert_ne!(first, of("body", &[("b", 1), ("a", 2)], Some("other"), true));
        assert_ne!(first, of("other", &[("b", 1), ("a", 2)], Some("id"), true));
        assert_ne!(first, of("body", &[("b", 1)], Some("id"), true));
    }
}
