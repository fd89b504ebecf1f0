//! The API through the application, without a socket, and its security over sockets.

mod client;
mod connections;
mod events;
mod files;
mod openapi;
mod protocol;
mod security;
mod tasks;
