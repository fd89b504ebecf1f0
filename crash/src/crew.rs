//! The processes of a run: started, killed, stopped and woken, and replaced when they are gone.
//!
//! Owns every process that the referee starts; nobody else is ever sent a signal. Dropping the crew kills what is
//! left of it.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::chance::Chance;
use crate::disk::Strace;
use crate::site::Site;
use crate::witness;
use crate::{OrTrouble, Trouble};

/// What a process is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Worker,
    Customer,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Customer => "customer",
        }
    }
}

struct Member {
    name: String,
    role: Role,
    child: Child,
}

pub(crate) struct Crew {
    site: Site,
    program: PathBuf,
    lease: Duration,
    chance: Chance,
    strace: Option<Strace>,
    members: Vec<Member>,
    started: u32,
    killed: Vec<(String, f64)>,
    by_own_hand: Vec<(String, f64)>,
    quitters: Vec<Quitter>,
}

/// Somebody who ended by itself with an error.
pub(crate) struct Quitter {
    pub(crate) name: String,
    pub(crate) last_words: String,
}

impl Crew {
    /// Nobody yet. With `strace`, everybody will have a bad disk.
    pub(crate) fn new(
        site: &Site,
        lease: Duration,
        seed: u64,
        strace: Option<Strace>,
    ) -> Result<Self, Trouble> {
        let program = std::env::current_exe().or_trouble("cannot find myself")?;
        Ok(Crew {
            site: site.clone(),
            program,
            lease,
            chance: Chance::new(seed),
            strace,
            members: Vec::new(),
            started: 0,
            killed: Vec::new(),
            by_own_hand: Vec::new(),
            quitters: Vec::new(),
        })
    }

    /// From now on the disk is good.
    pub(crate) fn mend_disk(&mut self) {
        self.strace = None;
    }

    /// Replaces who is gone, so that there are so many of the role. Says who is new.
    pub(crate) fn fill(&mut self, role: Role, count: usize) -> Result<Vec<String>, Trouble> {
        self.note_the_gone()?;
        let mut new = Vec::new();
        while self.count(role) < count {
            new.push(self.start(role)?);
        }
        Ok(new)
    }

    pub(crate) fn count(&self, role: Role) -> usize {
        self.members.iter().filter(|member| member.role == role).count()
    }

    /// The names of all in a role.
    pub(crate) fn names(&self, role: Role) -> Vec<String> {
        self.members.iter().filter(|member| member.role == role).map(|member| member.name.clone()).collect()
    }

    /// Kills as many as are asked for, chosen by chance, at one moment. Says who they were.
    pub(crate) fn kill(&mut self, role: Role, count: usize) -> Result<Vec<String>, Trouble> {
        self.note_the_gone()?;
        let mut victims = Vec::new();
        while victims.len() < count
            && let Some(victim) = self.pick(role)
        {
            victims.push(self.members.remove(victim));
        }
        // All of them first, and only then the waiting: nobody sees the others die.
        let killed_at = witness::now();
        for victim in &mut victims {
            // Gone by itself between the look and the kill: as good.
            let _ = victim.child.kill();
        }
        for victim in &mut victims {
            victim.child.wait().or_trouble("lost sight of a process")?;
            self.killed.push((victim.name.clone(), killed_at));
        }
        Ok(victims.into_iter().map(|victim| victim.name).collect())
    }

    /// Stops one, as a laptop that is closed does: it does not see the time go by. Says who, if there was one.
    pub(crate) fn stop_one(&mut self, role: Role) -> Result<Option<String>, Trouble> {
        self.note_the_gone()?;
        let Some(chosen) = self.pick(role) else { return Ok(None) };
        let member = &self.members[chosen];
        signal(&member.child, Signal::STOP)?;
        Ok(Some(member.name.clone()))
    }

    /// Lets one go on that was stopped, if it is still there.
    pub(crate) fn wake(&self, name: &str) -> Result<(), Trouble> {
        let member = self.members.iter().find(|member| member.name == name);
        member.map_or(Ok(()), |member| signal(&member.child, Signal::CONT))
    }

    /// Waits until one of these is at work, or all of them are gone, or the time is over.
    pub(crate) fn wait_for_one(&mut self, names: &[String], limit: Duration) -> Result<(), Trouble> {
        let start = Instant::now();
        while start.elapsed() < limit {
            let alive = |name: &&String| self.members.iter().any(|member| member.name == **name);
            let ready = |name: &String| self.site.flag_of(name).exists();
            if names.iter().any(ready) || !names.iter().any(|name| alive(&name)) {
                return Ok(());
            }
            pause(Duration::from_millis(2));
            self.note_the_gone()?;
        }
        Ok(())
    }

    /// Tells all of a role to end, and waits until they have.
    pub(crate) fn dismiss(&mut self, role: Role) -> Result<(), Trouble> {
        for member in self.members.iter_mut().filter(|member| member.role == role) {
            drop(member.child.stdin.take());
        }
        let start = Instant::now();
        while self.count(role) > 0 {
            self.note_the_gone()?;
            if start.elapsed() > Duration::from_secs(30) {
                return Err(Trouble::System(format!("a {} does not end when it is told to", role.word())));
            }
            pause(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Those that ended by themselves with an error since the last look.
    pub(crate) fn take_quitters(&mut self) -> Vec<Quitter> {
        std::mem::take(&mut self.quitters)
    }

    /// All who did not live to the end, by whatever hand, and when they died at the earliest.
    pub(crate) fn deaths(&self) -> impl Iterator<Item = (String, f64)> {
        self.killed.iter().chain(&self.by_own_hand).cloned()
    }

    pub(crate) fn summary(&self) -> String {
        let (started, killed, poisoned) = (self.started, self.killed.len(), self.by_own_hand.len());
        format!("{started} processes started, {killed} killed, {poisoned} dead of poison")
    }

    /// One of a role, by chance.
    fn pick(&mut self, role: Role) -> Option<usize> {
        let of_role: Vec<usize> =
            (0..self.members.len()).filter(|index| self.members[*index].role == role).collect();
        if of_role.is_empty() { None } else { Some(of_role[self.chance.index(of_role.len())]) }
    }

    fn start(&mut self, role: Role) -> Result<String, Trouble> {
        self.started += 1;
        let name = format!("{}{}", role.word(), self.started);
        let said = File::create(self.site.words_of(&name))
            .or_trouble("cannot create a file for a process's last words")?;
        let mut command = match &self.strace {
            Some(strace) => strace.before(&self.program, &self.site, &name, &mut self.chance),
            None => Command::new(&self.program),
        };
        command.arg(role.word()).arg(self.site.root()).arg(&name);
        command.args([self.chance.number().to_string(), self.lease.as_millis().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(said);
        let child = command.spawn().or_trouble(format!("cannot start a {}", role.word()))?;
        self.members.push(Member { name: name.clone(), role, child });
        Ok(name)
    }

    /// Takes those off the list that have ended by themselves.
    fn note_the_gone(&mut self) -> Result<(), Trouble> {
        let mut left = Vec::new();
        for mut member in std::mem::take(&mut self.members) {
            let ended = member.child.try_wait();
            match ended.or_trouble("lost sight of a process")? {
                None => left.push(member),
                Some(status) => self.bury(&member, status),
            }
        }
        self.members = left;
        Ok(())
    }

    fn bury(&mut self, member: &Member, status: ExitStatus) {
        if status.signal() == Some(Signal::KILL.as_raw()) {
            // Some time ago: only its lease, which still ran, knows when.
            self.by_own_hand.push((member.name.clone(), witness::now() - self.lease.as_secs_f64()));
        } else if !status.success() {
            let words = std::fs::read_to_string(self.site.words_of(&member.name)).unwrap_or_default();
            let last_words = words.lines().last().unwrap_or("no word").to_owned();
            self.quitters.push(Quitter { name: member.name.clone(), last_words });
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &mut self.members {
            // Whoever is gone already cannot be killed, and need not be.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

fn signal(child: &Child, signal: Signal) -> Result<(), Trouble> {
    // One that has just killed itself is still there until we have looked: it can be sent anything.
    kill_process(Pid::from_child(child), signal).or_trouble("cannot send a signal")
}

/// Waits a moment. Other processes give no signals that one could wait for.
pub(crate) fn pause(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::park_timeout(time - start.elapsed().min(time));
    }
}
