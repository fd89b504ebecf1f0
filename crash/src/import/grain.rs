//! Folders of JSONL to be imported: what a folder has in it that an import must get right.
//!
//! Owns what is in the files. The same chance makes the same ones. Nothing here knows what an import makes of it.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::chance::Chance;

/// Lines of the large files, about; small ones have up to so many.
const LARGE: u64 = 3_000;
const SMALL: u64 = 60;
const SMALL_FILES: u64 = 10;

/// More than a new database takes before it commits: a hole that is one line, and too long for one.
const HOLE: u64 = 66 << 20;

/// Two folders for the same tables, and files that are large.
pub(crate) struct Grain {
    /// What was loaded before.
    pub(crate) old: PathBuf,
    /// Of that, what has a primary key.
    pub(crate) old_keyed: PathBuf,
    /// What is loaded now.
    pub(crate) new: PathBuf,
    /// Files that make an import commit before it is at its end.
    pub(crate) heavy: PathBuf,
}

impl Grain {
    pub(crate) fn sow(within: &Path, mut chance: Chance) -> io::Result<Self> {
        let [old, new, heavy] = ["old", "new", "heavy"].map(|name| within.join(name));
        let old_keyed = old.join("keyed");
        for folder in [&old, &new] {
            fs::create_dir_all(folder.join("keyed"))?;
            fs::create_dir_all(folder.join("loose"))?;
        }
        fs::create_dir(&heavy)?;
        let lines = LARGE + chance.within(0..LARGE);
        // Some keys are in both.
        let ranges = [(&old, 0..lines), (&new, lines * 9 / 10..lines * 19 / 10)];
        for (folder, range) in ranges {
            let is_new = folder == &new;
            let mut sack = Sack { folder: folder.clone(), chance: &mut chance, ids: range.collect(), is_new };
            sack.keyed()?;
            sack.loose()?;
        }
        for name in ["a_hole", "p_hole"] {
            let mut file = File::create(heavy.join(format!("{name}.jsonl")))?;
            file.write_all(b"{\"_key\":1,\"before\":\"the hole\"}\n")?;
            file.set_len(HOLE + chance.within(0..1_000))?;
            let mut file = File::options().append(true).open(heavy.join(format!("{name}.jsonl")))?;
            file.write_all(b"\n{\"_key\":2,\"after\":\"the hole\"}\n")?;
        }
        Ok(Grain { old, old_keyed, new, heavy })
    }
}

/// A folder that is being filled.
struct Sack<'a> {
    folder: PathBuf,
    chance: &'a mut Chance,
    ids: Vec<u64>,
    is_new: bool,
}

impl Sack<'_> {
    /// Tables with a primary key.
    fn keyed(&mut self) -> io::Result<()> {
        self.file("keyed/types", |id, _| {
            let name = format!(r#"{{"en":"Thing {id}","de":"Ding {id}","fr":"Chose {id}"}}"#);
            let mass = id as f64 / 8.0;
            format!(r#"{{"_key":{id},"name":{name},"group":{},"mass":{mass},"is":{}}}"#, id % 17, id % 3 == 0)
        })?;
        self.file("keyed/words", |id, _| {
            format!(r#"{{"_key":"word {id}","group":{},"list":[1,{id}]}}"#, id % 5)
        })?;
        // A column of numbers, until the last lines; and one that only they have.
        self.file("keyed/turn", |id, left| match left {
            0..5 => format!(r#"{{"_key":{id},"value":"{id} and more"}}"#),
            _ => format!(r#"{{"_key":{id},"value":{id}}}"#),
        })?;
        let is_new = self.is_new;
        self.file("keyed/late", |id, left| match left {
            0..3 if is_new => format!(r#"{{"_key":{id},"group":{},"late":{{"by":{left}}}}}"#, id % 3),
            _ => format!(r#"{{"_key":{id},"group":{}}}"#, id % 3),
        })?;
        // Keys that do not rise.
        let rising = self.ids.clone();
        for index in (1..self.ids.len()).rev() {
            let other = self.chance.index(index + 1);
            self.ids.swap(index, other);
        }
        self.file("keyed/shuffled", |id, _| {
            format!(r#"{{"_key":{id},"text":"{}"}}"#, "x".repeat(id as usize % 40))
        })?;
        self.ids = rising;
        for number in 0..SMALL_FILES {
            // Some tables are not there before.
            if self.is_new || number % 2 == 0 {
                let some = self.chance.within(1..SMALL) as usize;
                let all = std::mem::take(&mut self.ids);
                self.ids = all[..some].to_vec();
                self.file(&format!("keyed/small{number}"), |id, _| {
                    format!(r#"{{"_key":{id},"group":{number}}}"#)
                })?;
                self.ids = all;
            }
        }
        match self.is_new {
            // Nothing in it: no table comes of it.
            true => fs::write(self.folder.join("keyed/blank.jsonl"), ""),
            false => self.file("keyed/kept", |id, _| format!(r#"{{"_key":{id},"only":"before"}}"#)),
        }
    }

    /// Tables without one: a line that is loaded twice is there twice.
    fn loose(&mut self) -> io::Result<()> {
        self.file("loose/events", |id, _| format!(r#"{{"at":{id},"what":"event","size":{}}}"#, id * 3))?;
        // What a file begins with says whether it is lines, an array or one object.
        let first = self.ids.first().copied();
        self.file("loose/bad", |id, _| match id % 50 {
            _ if Some(id) == first => format!(r#"{{"good":{id}}}"#),
            7 => format!(r#"{{"cut":{id}"#),
            8 => format!("[{id}]"),
            9 => format!(r#"{{"twice":{id},"twice":{id}}}"#),
            _ => format!(r#"{{"good":{id}}}"#),
        })
    }

    /// A file of a line for each id; the line is also told how many come after it.
    fn file(&mut self, name: &str, line: impl Fn(u64, usize) -> String) -> io::Result<()> {
        let mut text = String::new();
        for (index, id) in self.ids.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", line(*id, self.ids.len() - 1 - index));
        }
        fs::write(self.folder.join(format!("{name}.jsonl")), text)
    }
}
