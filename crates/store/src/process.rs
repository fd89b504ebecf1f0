//! Identifies processes, so that another process can check whether one still runs.
//!
//! Owns the text that identifies a process: `process 12 on host (boot 1a2b3c4d/4026531836, start 77)`. Process ids are
//! reused; with its start time, the boot and the pid namespace the text identifies one process. Only Linux provides
//! these; on other systems the state of a process is unknown. Also reads the monotonic clock that processes of one boot
//! share.

use std::sync::LazyLock;

/// Returns the text that identifies this process. It is computed once.
pub fn tag() -> String {
    static TAG: LazyLock<String> = LazyLock::new(|| tag_of(std::process::id()));
    TAG.clone()
}

/// Returns the text that identifies the process with this id.
pub fn tag_of(process: u32) -> String {
    match (system::start_of(process), system::boot()) {
        (start, Some(boot)) => {
            let (host, start) = (system::host(), start.unwrap_or_default());
            format!("process {process} on {host} (boot {boot}, start {start})")
        }
        (_, None) => format!("process {process}"),
    }
}

/// Returns whether the process of a tag is running. `None` if that is unknown: it belongs to another host, an earlier
/// boot or another pid namespace, its start time was not recorded, or the system does not provide these.
pub fn is_alive(tag: &str) -> Option<bool> {
    let found = Identity::parse(tag)?;
    if Some(found.boot) != system::boot() {
        return None;
    }
    match system::start_of(found.process) {
        // Only a process with the same start time is the same process.
        Some(_) if found.start.is_empty() => None,
        Some(start) => Some(start == found.start),
        None => system::has_ended(found.process).then_some(false),
    }
}

/// Returns milliseconds of a clock that all processes of this boot share. It does not follow the wall clock, and stops
/// while the machine is suspended. Always 0 on systems where [`is_alive`] returns `None`.
pub(crate) fn monotonic_ms() -> i64 {
    system::monotonic_ms()
}

struct Identity<'a> {
    process: u32,
    boot: &'a str,
    start: &'a str,
}

impl<'a> Identity<'a> {
    fn parse(tag: &'a str) -> Option<Self> {
        let (process, rest) = tag.strip_prefix("process ")?.split_once(" on ")?;
        let (_, rest) = rest.split_once(" (boot ")?;
        let (boot, start) = rest.strip_suffix(')')?.split_once(", start ")?;
        Some(Identity { process: process.parse().ok()?, boot, start })
    }
}

/// Reads `/proc`; on systems without it everything is unknown.
mod system {
    use std::fs;
    use std::sync::LazyLock;

    pub(super) fn host() -> String {
        fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
    }

    /// Returns the boot id and the pid namespace. Neither changes while the process runs.
    pub(super) fn boot() -> Option<&'static str> {
        static BOOT: LazyLock<Option<String>> = LazyLock::new(read_boot);
        BOOT.as_deref()
    }

    fn read_boot() -> Option<String> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let namespace = namespace.to_string_lossy();
        let number = namespace.trim_start_matches("pid:[").trim_end_matches(']');
        Some(format!("{}/{number}", boot.trim().get(..8).unwrap_or("?")))
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn monotonic_ms() -> i64 {
        0
    }

    #[cfg(target_os = "linux")]
    pub(super) fn monotonic_ms() -> i64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000)
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn has_ended(_: u32) -> bool {
        false
    }

    /// Returns whether the process does not exist or is a zombie. `/proc` may hide processes of other users
    /// (`hidepid`); the kernel still confirms that they exist.
    #[cfg(target_os = "linux")]
    pub(super) fn has_ended(process: u32) -> bool {
        let Some(pid) = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw) else {
            return true;
        };
        let exists = rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH);
        !exists || stat(process).is_some_and(|(state, _)| is_zombie(&state))
    }

    /// Returns when a process was started, in clock ticks since the boot. `None` if it does not exist or is a zombie.
    pub(super) fn start_of(process: u32) -> Option<String> {
        stat(process).filter(|(state, _)| !is_zombie(state)).map(|(_, start)| start)
    }

    fn is_zombie(state: &str) -> bool {
        state == "Z" || state == "X"
    }

    /// Returns the state and the start time of a process.
    fn stat(process: u32) -> Option<(String, String)> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name in parentheses may itself contain parentheses.
        let (_, fields) = text.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        Some((fields.next()?.to_owned(), fields.nth(18)?.to_owned()))
    }
}
