//! Running consumer of a test.

use std::fs::File;
use std::process::{Child, Command};

use crate::common::{RunOutput, signal};
use crate::fixture::Fixture;

/// Running consumer whose standard error is in a file.
pub(crate) struct ConsumerProcess {
    pub(crate) child: Child,
    log: std::path::PathBuf,
}

impl ConsumerProcess {
    pub(crate) fn start(fixture: &Fixture, mut command: Command) -> Self {
        let log = fixture.home.path("log");
        let child = command.stdout(std::process::Stdio::piped()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        ConsumerProcess { child, log }
    }

    pub(crate) fn consume(fixture: &Fixture, words: &[&str]) -> Self {
        Self::start(fixture, fixture.command(&[&["consume", &fixture.queue, "--json"], words].concat()))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    #[track_caller]
    pub(crate) fn logs(&self, fixture: &Fixture, text: &str) {
        fixture.wait_until(&format!("{text:?} in the log"), || self.log().contains(text));
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn terminate(&self) {
        signal(&self.child, "TERM");
    }

    pub(crate) fn end(self) -> (RunOutput, String) {
        self.terminate();
        self.wait()
    }

    pub(crate) fn wait(self) -> (RunOutput, String) {
        let output = RunOutput::of(&self.child.wait_with_output().unwrap());
        (output, std::fs::read_to_string(self.log).unwrap())
    }
}
