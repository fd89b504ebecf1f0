//! Values of headers and arguments.

use gristmill_amqp::FieldValue;

#[test]
fn integers_of_any_width_are_read_by_as_int() {
    let values = [
        (FieldValue::Int8(-1), -1),
        (FieldValue::UInt8(255), 255),
        (FieldValue::Int16(-2), -2),
        (FieldValue::UInt16(65534), 65534),
        (FieldValue::Int32(-1), -1),
        (FieldValue::UInt32(u32::MAX), i64::from(u32::MAX)),
        (FieldValue::Int(i64::MIN), i64::MIN),
    ];
    for (value, number) in values {
        assert_eq!(value.as_int(), Some(number));
        assert_eq!(value.to_string(), number.to_string());
    }
}
