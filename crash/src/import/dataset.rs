//! Folders of JSONL files with the cases that an import must handle.
//!
//! Owns the contents of the files; the same seed gives the same files. Knows nothing about imports.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use gristmill_check::Rng;

/// Minimum number of lines of the large files, and maximum of the small ones.
const LARGE_FILE_LINES: u64 = 3_000;
const MAX_SMALL_FILE_LINES: u64 = 60;
const SMALL_FILE_COUNT: u64 = 10;

/// More bytes than a new database takes between commits: a hole in a file that is one line, and longer than allowed.
const MIN_HOLE_BYTES: u64 = 66 << 20;

/// Two folders with the same tables, and large files.
pub(crate) struct Dataset {
    /// Folder that is loaded before.
    pub(crate) old: PathBuf,
    /// Its tables with a primary key.
    pub(crate) old_keyed: PathBuf,
    /// Folder that is loaded in the rounds.
    pub(crate) new: PathBuf,
    /// Files that make an import commit before its end.
    pub(crate) heavy: PathBuf,
}

impl Dataset {
    pub(crate) fn generate(within: &Path, mut rng: Rng) -> io::Result<Self> {
        let [old, new, heavy] = ["old", "new", "heavy"].map(|name| within.join(name));
        let old_keyed = old.join("keyed");
        for folder in [&old, &new] {
            fs::create_dir_all(folder.join("keyed"))?;
            fs::create_dir_all(folder.join("loose"))?;
        }
        fs::create_dir(&heavy)?;
        let lines = LARGE_FILE_LINES + rng.u64(0..LARGE_FILE_LINES);
        // The last 10% of the old keys are also in the new folder.
        let ranges = [(&old, 0..lines), (&new, lines * 9 / 10..lines * 19 / 10)];
        for (folder, range) in ranges {
            let is_new = folder == &new;
            let mut writer = FolderWriter { folder: folder.clone(), rng: &mut rng, ids: range.collect(), is_new };
            writer.keyed()?;
            writer.loose()?;
        }
        for name in ["a_hole", "p_hole"] {
            let mut file = File::create(heavy.join(format!("{name}.jsonl")))?;
            file.write_all(b"{\"_key\":1,\"before\":\"the hole\"}\n")?;
            file.set_len(MIN_HOLE_BYTES + rng.u64(0..1_000))?;
            let mut file = File::options().append(true).open(heavy.join(format!("{name}.jsonl")))?;
            file.write_all(b"\n{\"_key\":2,\"after\":\"the hole\"}\n")?;
        }
        Ok(Dataset { old, old_keyed, new, heavy })
    }
}

struct FolderWriter<'a> {
    folder: PathBuf,
    rng: &'a mut Rng,
    ids: Vec<u64>,
    is_new: bool,
}

impl FolderWriter<'_> {
    /// Writes the tables with a primary key.
    fn keyed(&mut self) -> io::Result<()> {
        self.file("keyed/types", |id, _| {
            let name = format!(r#"{{"en":"Thing {id}","de":"Ding {id}","fr":"Chose {id}"}}"#);
            let mass = id as f64 / 8.0;
            format!(r#"{{"_key":{id},"name":{name},"group":{},"mass":{mass},"is":{}}}"#, id % 17, id % 3 == 0)
        })?;
        self.file("keyed/words", |id, _| format!(r#"{{"_key":"word {id}","group":{},"list":[1,{id}]}}"#, id % 5))?;
        // A column of numbers that has texts in the last lines; then a column that only the last lines have.
        self.file("keyed/turn", |id, lines_after| match lines_after {
            0..5 => format!(r#"{{"_key":{id},"value":"{id} and more"}}"#),
            _ => format!(r#"{{"_key":{id},"value":{id}}}"#),
        })?;
        let is_new = self.is_new;
        self.file("keyed/late", |id, lines_after| match lines_after {
            0..3 if is_new => format!(r#"{{"_key":{id},"group":{},"late":{{"by":{lines_after}}}}}"#, id % 3),
            _ => format!(r#"{{"_key":{id},"group":{}}}"#, id % 3),
        })?;
        // Keys in random order.
        let rising = self.ids.clone();
        self.rng.shuffle(&mut self.ids);
        self.file("keyed/shuffled", |id, _| format!(r#"{{"_key":{id},"text":"{}"}}"#, "x".repeat(id as usize % 40)))?;
        self.ids = rising;
        for number in 0..SMALL_FILE_COUNT {
            // Every second table exists only in the new folder.
            if self.is_new || number % 2 == 0 {
                let count = self.rng.u64(1..MAX_SMALL_FILE_LINES) as usize;
                let all = std::mem::take(&mut self.ids);
                self.ids = all[..count].to_vec();
                self.file(&format!("keyed/small{number}"), |id, _| format!(r#"{{"_key":{id},"group":{number}}}"#))?;
                self.ids = all;
            }
        }
        match self.is_new {
            // An empty file gives no table.
            true => fs::write(self.folder.join("keyed/blank.jsonl"), ""),
            false => self.file("keyed/kept", |id, _| format!(r#"{{"_key":{id},"only":"before"}}"#)),
        }
    }

    /// Writes the tables without a primary key, in which a line that is loaded twice gives two rows.
    fn loose(&mut self) -> io::Result<()> {
        self.file("loose/events", |id, _| format!(r#"{{"at":{id},"what":"event","size":{}}}"#, id * 3))?;
        // The first line decides whether the file is read as lines, an array or one object, so it must be valid.
        let first = self.ids.first().copied();
        self.file("loose/bad", |id, _| match id % 50 {
            _ if Some(id) == first => format!(r#"{{"good":{id}}}"#),
            7 => format!(r#"{{"cut":{id}"#),
            8 => format!("[{id}]"),
            9 => format!(r#"{{"twice":{id},"twice":{id}}}"#),
            _ => format!(r#"{{"good":{id}}}"#),
        })
    }

    /// Writes a file with a line for each id. `line` gets the id and the number of lines after it.
    fn file(&mut self, name: &str, line: impl Fn(u64, usize) -> String) -> io::Result<()> {
        let mut text = String::new();
        for (index, id) in self.ids.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", line(*id, self.ids.len() - 1 - index));
        }
        fs::write(self.folder.join(format!("{name}.jsonl")), text)
    }
}
