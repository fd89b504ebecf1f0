//! URIs of brokers: parsed, shown and refused.

use gristmill_amqp::Endpoint;

#[track_caller]
fn check(given: &str, shown: &str) {
    let endpoint: Endpoint = given.parse().unwrap_or_else(|error| panic!("{given}: {error}"));
    assert_eq!(endpoint.to_string(), shown, "{given}");
}

#[test]
fn valid_uris_are_parsed() {
    check("amqp://", "amqp://guest@localhost:5672/%2f");
    check("amqp://host", "amqp://guest@host:5672/%2f");
    check("AMQP://host:1", "amqp://guest@host:1/%2f");
    check("amqps://host", "amqps://guest@host:5671/%2f");
    check("amqp://a:b@host/vhost", "amqp://a@host:5672/vhost");
    check("amqp://a:b@host/", "amqp://a@host:5672/%2f");
    check("amqp://a:b@host/%2fvhost", "amqp://a@host:5672/%2fvhost");
    check("amqp://a%40b:p%3a%2f%40@[::1]:77/x", "amqp://a%40b@[::1]:77/x");
    check("amqp://a:p@ss@host", "amqp://a@host:5672/%2f");
    check("amqp://host%2f%40:1", "amqp://guest@host%2f%40:1/%2f");
    check("amqp://[fe80::1%25eth0]", "amqp://guest@[fe80::1%25eth0]:5672/%2f");
    check("amqp://host?heartbeat=5&connection_timeout=100", "amqp://guest@host:5672/%2f");
}

#[test]
fn error_repeats_no_part_of_an_unescaped_password() {
    for given in ["amqp://a:b?secret%zz=%@host", "amqp://a:b?secret=%@host", "amqp://a:b?heartbeat&secret=1@host"] {
        let error = given.parse::<Endpoint>().unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}

#[track_caller]
fn refused(given: &str, why: &str) {
    let error = given.parse::<Endpoint>().expect_err(given).to_string();
    assert!(error.contains(why), "{given}: {error}");
    assert!(!error.contains("secret"), "{given}: {error}");
}

#[test]
fn invalid_uris_are_refused_with_the_reason() {
    refused("http://a:secret@host", "amqp://");
    refused("a:secret@host", "amqp://");
    refused("amqp://a:secret@host:0", "port");
    refused("amqp://a:secret@host:secret", "port");
    refused("amqp://a:secret@host/a/b", "%2f");
    refused("amqp://a:secret%zz@host", "the password has a %");
    refused("amqp://a:secret@host?heartbeat=0", "heartbeat");
    refused("amqp://a:secret@host?heartbeat=secret", "heartbeat");
    refused("amqp://a:secret@host?cacertfile=x", "amqps");
    refused("amqps://a:secret@host?certfile=x", "keyfile");
    refused("amqps://a:secret@host?verify=verify_none", "cacertfile");
    refused("amqps://a:secret@host?secret=1", "parameter");
}
