//! Settings of a broker that differ from the defaults.

/// Settings that a [`Broker`](crate::Broker) is started with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub(crate) lines: Vec<String>,
    pub(crate) tls: bool,
    pub(crate) management: bool,
}

impl Settings {
    /// Creates the default settings: no plugins, one listener without TLS.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Adds a line to `rabbitmq.conf`, such as `vm_memory_high_watermark.absolute = 64MB`. It overrides a default line
    /// for the same setting.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Settings {
        self.lines.push(line.into());
        self
    }

    /// Enables the plugin rabbitmq_management, whose HTTP API listens on its own port. Its counts are refreshed every
    /// second instead of every 5 s.
    #[must_use]
    pub fn management(mut self) -> Settings {
        self.management = true;
        self
    }

    /// Adds a TLS listener with a certificate for `localhost` and 127.0.0.1, signed by an authority that is created for
    /// this broker only.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self) -> Settings {
        self.tls = true;
        self
    }
}
