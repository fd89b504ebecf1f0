//! Messages that were stored as JSON.

use gristmill_amqp::Message;
use serde_json::json;

#[test]
fn message_stored_by_an_older_version_is_read() {
    let old = json!({"exchange": "", "routing_key": "orders", "headers": {"a": "1"}, "payload": "x"});
    let read = Message::from_json(&old, "orders").unwrap();
    assert_eq!(read, Message::to_queue("orders", "x").header("a", "1"));
}

#[test]
fn invalid_json_message_is_refused_with_the_reason() {
    for (json, expected) in [
        (json!({}), "neither payload"),
        (json!({"payload_hex": "f"}), "not hexadecimal"),
        (json!({"payload": "", "properties": {"priority": 256}}), "invalid value 256"),
        (json!({"payload": "", "properties": {"colour": "red"}}), "property colour"),
        (json!({"payload": "", "headers": [{"name": "a", "type": "int8", "value": 200}]}), "200"),
        (json!({"payload": "", "headers": [{"type": "void"}]}), "no name"),
    ] {
        let error = Message::from_json(&json, "orders").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
