//! How a broker is to be set up, where the defaults will not do.

/// What a [`Broker`](crate::Broker) is started with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub(crate) lines: Vec<String>,
    pub(crate) tls: bool,
    pub(crate) management: bool,
}

impl Settings {
    /// The defaults: no plugins, one listener without TLS.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// One more line of `rabbitmq.conf`: `vm_memory_high_watermark.absolute = 64MB`. It goes before our own lines
    /// for the same setting.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Settings {
        self.lines.push(line.into());
        self
    }

    /// Enables the plugin rabbitmq_management: its HTTP API listens on a port of its own. The counts of that API are refreshed
    /// every second instead of every 5 s.
    #[must_use]
    pub fn management(mut self) -> Settings {
        self.management = true;
        self
    }

    /// A second listener that speaks TLS, with a certificate for `localhost` and 127.0.0.1 by an authority that
    /// was made for this broker alone.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self) -> Settings {
        self.tls = true;
        self
    }
}
