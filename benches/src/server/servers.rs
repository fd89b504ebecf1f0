//! Servers as processes: `gristmill serve`, and a bare axum handler.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use axum::{Router, routing::get};
use serde_json::Value;

use crate::process;

/// A server that ends when this is dropped.
pub(super) struct Running {
    child: Child,
    pub(super) address: String,
    pub(super) token: String,
}

impl Running {
    /// Starts `gristmill serve` without a worker.
    pub(super) fn gristmill(program: &Path, database: &Path, scratch: &Path) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.arg("--db").arg(database).args(["serve", "--listen", "0", "--no-worker", "--json"]);
        let mut server = Running::start(command, scratch)?;
        let file = format!("{}.token", database.display());
        server.token = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?.trim().to_owned();
        Ok(server)
    }

    /// Starts this program as a server with one handler.
    pub(super) fn bare(scratch: &Path) -> Result<Self, String> {
        let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
        command.arg("server-bare");
        Running::start(command, scratch)
    }

    /// Reads the address from the JSON that the server prints when it has started.
    fn start(mut command: Command, scratch: &Path) -> Result<Self, String> {
        process::isolate(&mut command, scratch).map_err(|error| error.to_string())?;
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let stdout = child.stdout.take().map(BufReader::new).ok_or("no standard output")?;
        let mut text = String::new();
        for line in stdout.lines() {
            text.push_str(&line.map_err(|error| error.to_string())?);
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                let address = value["address"].as_str().unwrap_or_default().to_owned();
                return Ok(Running { child, address, token: String::new() });
            }
        }
        Err(format!("the server did not start: {text}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves one handler with `axum::serve` until the process is killed.
pub(crate) fn bare() -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        println!("{}", serde_json::json!({ "address": address.to_string() }));
        let router = Router::new().route("/health", get(async || "{\"status\":\"ok\"}"));
        axum::serve(listener, router).await.map_err(|error| error.to_string())
    })
}
