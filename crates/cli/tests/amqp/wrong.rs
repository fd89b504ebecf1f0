//! What is wrong, and what is said of it. None of these needs a broker.

use crate::common::Home;

#[track_caller]
fn wrong(words: &[&str], expected: &str) {
    Home::new().check(words, 1, "", expected);
}

#[test]
fn words_that_make_no_consumer() {
    wrong(&["consume"], "the settings file has no [[consumers]], and no queue is named");
    wrong(&["consume", "q"], "nothing is said about what to do with the messages of q; --exec, --http");
    wrong(&["consume", "--exec", "true"], "QUEUE is missing (the command line)");
    wrong(&["consume", "q", "--exec", "./is-not-there"], "there is no program \"./is-not-there\"");
    wrong(&["consume", "q", "--exec", "true --fast"], "leave off the quotes");
    wrong(&["consume", "q", "--exec"], "a value is required for '--exec <COMMAND>...'");
    wrong(&["consume", "q", "--http", "http://x", "--enqueue", "k"], "a consumer has --http and --enqueue");
    wrong(&["consume", "q", "--http", "ftp://me:secret@x"], "consumers.http is what it is (--http)");
    wrong(&["consume", "q", "--into", "x.db"], "--table is missing");
    wrong(&["consume", "q", "--http", "http://x", "--table", "t"], "--table goes with --into only");
    wrong(&["consume", "q", "--workers", "201", "--exec", "true"], "legal: a whole number from 0 to 200");
    wrong(&["consume", "q", "--workers", "-1", "--exec", "true"], "consumers.workers is \"-1\" (--workers)");
    wrong(&["consume", "q", "--prefetch", "x", "--exec", "true"], "legal: a whole number from 0 to 1000");
    wrong(&["consume", "q", "--order-by", "customer", "--exec", "true"], "legal: header:NAME or routing-key");
    wrong(&["consume", "q", "--timeout", "5", "--exec", "true"], "consumers.timeout is \"5\"");
    wrong(&["consume", "q", "--attempts", "0", "--exec", "true"], "from 1 to 1000");
    wrong(&["consume", "q", "--declare", "lazy", "--exec", "true"], "legal: quorum, classic or stream");
    wrong(&["consume", "q", "--bind", "shop", "--exec", "true"], "legal: a list of EXCHANGE:KEY");
    wrong(&["consume", "q", "--offset", "-3", "--exec", "true"], "legal: first, last, next or the number");
    wrong(&["consume", "q", "--for", "0s", "--exec", "true"], "--for is \"0s\"");
    wrong(
        &["consume", "q", "--shutdown", "long", "--exec", "true"],
        "amqp.shutdown is \"long\" (--shutdown)",
    );
    wrong(&["consume", "q", "--metrics", "here", "--exec", "true"], "amqp.metrics is \"here\" (--metrics)");
    wrong(&["consume", "q", "--into", "/", "--table", "t"], "is a folder");
    wrong(
        &["consume", "q", "--uri", "amqp://a:s3cr3t@h:x", "--exec", "true"],
        "amqp.uri (--uri) is not legal: ",
    );
}

#[test]
fn words_that_publish_nothing() {
    wrong(&["publish"], "--queue <QUEUE>|--exchange <EXCHANGE>");
    wrong(&["publish", "--queue", "q", "--exchange", "e"], "cannot be used with");
    wrong(&["publish", "--queue", "q", "--routing-key", "k"], "cannot be used with");
    wrong(&["publish", "--queue", "q", "--header", "novalue"], "legal: NAME=VALUE");
    wrong(&["publish", "--queue", "q", "--in-flight", "0"], "0 is not in 1..=100000");
    wrong(&["publish", "--queue", "q", "--whole", "file"], "--whole is about standard input");
    wrong(&["publish", "--queue", "q", "--declare", "lazy"], "legal: quorum, classic or stream");
    wrong(&["publish", "--queue", ""], "a queue has no name");
}

#[test]
fn a_password_is_told_by_nothing() {
    let home = Home::new();
    for words in [
        &["consume", "q", "--uri", "amqp://a:s3cr3t@h:x", "--exec", "true"][..],
        &["consume", "q", "--uri", "s3cr3t", "--exec", "true"],
        &["publish", "--queue", "q", "--uri", "http://a:s3cr3t@h"],
        &["queues", "q", "--uri", "amqp://a:s3cr3t@h?verify=s3cr3t"],
        &["consume", "q", "--http", "ftp://a:s3cr3t@h"],
    ] {
        let said = home.run(words);
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(!said.err.contains("s3cr3t") && !said.out.contains("s3cr3t"), "{said:?}");
    }
}
