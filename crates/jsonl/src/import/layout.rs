//! The columns of a table as they are found, and how rows are to be read for them.
//!
//! Owns which key becomes which column, and what happens when there are too many.

use std::collections::HashMap;

use super::names::Taken;
use super::options::Options;
use super::schema::{OtherKeys, TableSchema};
use crate::keys::{Fate, GATHERED, Keys, ROOT};
use crate::kinds::{Kinds, Type};
use crate::parse::{DEEPEST, Form, Others};
use crate::rows::Rows;

/// SQLite's own limit.
pub(crate) const MAX_COLUMNS: usize = 2_000;

/// The column for keys that are too many.
const MORE: &str = "_more";

/// No column.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// The keys that lead to a value.
pub(crate) type Path = Vec<Box<[u8]>>;

#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Unknown for a column that was there before, until a key is found that makes its name.
    pub(crate) path: Option<Path>,
    pub(crate) name: String,
    pub(crate) fate: Fate,
    pub(crate) kinds: Kinds,
    /// The table had it before us.
    pub(crate) is_old: bool,
    /// What the table said it was, if it may become wider: a column of numbers that we made ourselves.
    pub(crate) declared: Option<Type>,
    /// The table has it.
    pub(crate) is_made: bool,
}

impl Column {
    pub(crate) fn kind(&self) -> Type {
        match (self.declared, self.fate) {
            (Some(declared), _) => declared,
            (_, Fate::Fixed(kind)) => kind,
            _ => self.kinds.widest(),
        }
    }

    /// What is worth knowing about a column that nothing but its numbers makes text.
    pub(crate) fn of_decimals(&self) -> Option<String> {
        let is = self.fate == Fate::Inferred && self.kinds.is_decimal();
        let name = &self.name;
        is.then(|| format!("the column {name:?} is TEXT, because some of its numbers need more than 64 bits"))
    }

    /// Numbers that the type would damage, or does not speak of, make it a wider one.
    fn widen(&mut self) -> bool {
        let is_too_narrow = match self.declared {
            Some(Type::Integer | Type::Boolean) => self.kinds.has(Kinds::REAL),
            Some(Type::Real) => self.kinds.has(Kinds::BIG),
            _ => false,
        };
        if is_too_narrow {
            self.declared = Some(Type::Numeric);
        }
        is_too_narrow
    }
}

/// A column that the table had before us.
pub(crate) struct OldColumn {
    pub(crate) name: String,
    pub(crate) fate: Fate,
    pub(crate) kind: Type,
    pub(crate) can_widen: bool,
}

/// What cannot go on as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Snag {
    /// More columns than SQLite has. The layout has been changed; the file is to be read again.
    TooMany,
    /// The table had so many before that there is no room for this one.
    NoRoom(String),
    /// A value came as it was that has to be made to fit. The layout knows it now.
    Unfitted,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) columns: Vec<Column>,
    by_path: HashMap<Path, usize>,
    taken: Taken,
    /// Keys whose objects are not spread.
    whole: Vec<Box<[u8]>>,
    /// No object is spread.
    is_flat: bool,
    /// Keys that are no column go into this one.
    more: Option<usize>,
    pub(crate) notes: Vec<String>,
}

impl Layout {
    /// With the columns that the table has already.
    pub(crate) fn of_table(
        columns: Vec<OldColumn>,
        hidden: &[String],
        renamed: &HashMap<String, Path>,
    ) -> Self {
        let mut layout = Layout::default();
        hidden.iter().for_each(|name| layout.taken.add(name));
        for OldColumn { name, fate, kind, can_widen } in columns {
            let path = renamed.get(&name).cloned();
            layout.taken.add(&name);
            // The one that we make when there are too many.
            let is_more = layout.columns.len() == MAX_COLUMNS - 1 && name == MORE && kind == Type::Text;
            let path = path.or_else(|| is_more.then(Path::new));
            if is_more {
                layout.more = Some(layout.columns.len());
                layout.is_flat = true;
            }
            if let Some(path) = &path {
                layout.by_path.insert(path.clone(), layout.columns.len());
            }
            let declared = can_widen.then_some(kind);
            let fate = if can_widen { Fate::Fixed(Type::Numeric) } else { fate };
            let kinds = Kinds::default();
            layout.columns.push(Column { path, name, fate, kinds, is_old: true, declared, is_made: true });
        }
        layout
    }

    /// Columns of the table that have to become wider before more rows can go in.
    pub(crate) fn widen(&mut self) -> bool {
        self.columns.iter_mut().fold(false, |any, column| column.widen() | any)
    }

    /// How many keys have found their column.
    pub(crate) fn placed(&self) -> usize {
        self.by_path.len()
    }

    /// Whatever comes into the columns that are new stays as it is: there is no telling what comes later.
    pub(crate) fn take_anything(&mut self) {
        for column in self.columns.iter_mut().filter(|column| column.fate == Fate::Inferred) {
            column.fate = Fate::Fixed(Type::Any);
        }
    }

    /// What was made is there, from now on.
    pub(crate) fn keep(&mut self) {
        self.columns.iter_mut().for_each(|column| column.is_old |= column.is_made);
    }

    /// A column by its name, or by the key it comes from.
    pub(crate) fn named(&self, name: &str) -> Option<usize> {
        let by_key = || {
            let is_key = |path: &Path| {
                path.iter().map(|key| String::from_utf8_lossy(key)).collect::<Vec<_>>().join(".") == name
            };
            self.columns.iter().position(|column| column.path.as_ref().is_some_and(is_key))
        };
        self.column(name).or_else(by_key)
    }

    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Which column each of a block's keys is, new ones added; and what kinds of values they have seen.
    pub(crate) fn place(&mut self, rows: &Rows, schema: Option<&TableSchema>) -> Result<Vec<u32>, Snag> {
        let mut map = vec![NOWHERE; rows.keys.len()];
        let mut snag = None;
        for &number in rows.keys.order() {
            let key = rows.keys.get(number);
            let index = if key.parent == GATHERED {
                self.more.unwrap_or_default()
            } else {
                self.index(rows.keys.path(number).into_iter().map(Into::into).collect(), schema)
            };
            let column = &mut self.columns[index];
            column.kinds.insert(key.kinds);
            if let (Fate::Fixed(kind), Fate::Inferred) = (column.fate, key.fate)
                && kind != Type::Any
            {
                snag = Some(Snag::Unfitted);
            }
            map[number as usize] = index as u32;
            // At once: a line may have a million keys.
            if self.columns.len() > MAX_COLUMNS {
                let last = self.columns[index].name.clone();
                return Err(if self.shrink() { Snag::TooMany } else { Snag::NoRoom(last) });
            }
        }
        snag.map_or(Ok(map), Err)
    }

    fn index(&mut self, path: Path, schema: Option<&TableSchema>) -> usize {
        if let Some(index) = self.by_path.get(&path) {
            return *index;
        }
        let words: Vec<_> = path.iter().map(|key| String::from_utf8_lossy(key)).collect();
        let fixed = schema.and_then(|schema| schema.columns.get(&words.join(".")));
        let wanted = fixed.and_then(|fixed| fixed.name.clone()).unwrap_or_else(|| words.join("_"));
        let unclaimed = self.column(&wanted).filter(|index| self.columns[*index].path.is_none());
        let index = unclaimed.unwrap_or_else(|| {
            let name = self.taken.take(&wanted);
            if name != wanted {
                self.notes.push(format!("the key {:?} is the column {name:?}", words.join(".")));
            }
            let fate = fixed.and_then(|fixed| fixed.kind).map_or(Fate::Inferred, Fate::Fixed);
            self.columns.push(Column {
                path: None,
                name,
                fate,
                kinds: Kinds::default(),
                is_old: false,
                declared: None,
                is_made: false,
            });
            self.columns.len() - 1
        });
        self.columns[index].path = Some(path.clone());
        self.by_path.insert(path, index);
        index
    }

    /// Makes room: the key that was spread the widest is kept as JSON; then all that are spread are; and then the keys that
    /// came last go into one column. Says no when the table was full before.
    fn shrink(&mut self) -> bool {
        let mut spread: HashMap<&[u8], usize> = HashMap::new();
        let paths =
            self.columns.iter().filter(|column| !column.is_old).filter_map(|column| column.path.as_ref());
        for path in paths.filter(|path| path.len() > 1) {
            *spread.entry(&path[0]).or_default() += 1;
        }
        let is_spread = !spread.is_empty();
        let widest =
            spread.into_iter().filter(|(_, count)| *count > 1).max_by_key(|(key, count)| (*count, *key));
        let old = self.columns.iter().filter(|column| column.is_old).count();
        if let Some((key, _)) = widest {
            let key: Box<[u8]> = key.into();
            self.notes.push(format!(
                "the objects of {:?} have too many keys for columns ({MAX_COLUMNS} is SQLite's limit): kept as JSON",
                String::from_utf8_lossy(&key)
            ));
            let stays = |column: &Column| {
                column.is_old || column.path.as_ref().is_none_or(|path| path.len() == 1 || path[0] != key)
            };
            self.columns.retain(stays);
            self.whole.push(key);
        } else if is_spread {
            self.is_flat = true;
            self.notes.push("there are too many keys for columns: no object is spread".to_owned());
            self.columns.retain(|column| column.is_old);
        } else if old >= MAX_COLUMNS {
            return false;
        } else {
            self.columns.truncate(MAX_COLUMNS - 1);
            self.rebuild();
            let name = self.taken.take(MORE);
            self.notes.push(format!(
                "there are more keys than SQLite has columns: {} are columns, the others are in {name:?}",
                MAX_COLUMNS - 1
            ));
            self.columns.push(Column {
                path: Some(Path::new()),
                name,
                fate: Fate::Fixed(Type::Text),
                kinds: Kinds::JSON,
                is_old: false,
                declared: None,
                is_made: false,
            });
            self.more = Some(self.columns.len() - 1);
        }
        self.rebuild();
        true
    }

    fn rebuild(&mut self) {
        self.by_path.clear();
        self.taken = Taken::default();
        for (index, column) in self.columns.iter().enumerate() {
            self.taken.add(&column.name);
            if let Some(path) = &column.path {
                self.by_path.insert(path.clone(), index);
            }
        }
    }

    /// Adds columns that the schema names and no row had.
    pub(crate) fn complete(&mut self, options: &Options, schema: Option<&TableSchema>) {
        let columns = schema.into_iter().flat_map(|schema| &schema.columns);
        for (name, _) in columns.filter(|(_, column)| !column.skip && column.kind.is_some()) {
            self.index(path_of(name, options), schema);
        }
    }

    /// Fixes what has been found out.
    pub(crate) fn settle(&mut self) {
        self.notes.extend(self.columns.iter().filter_map(Column::of_decimals));
        for column in self.columns.iter_mut().filter(|column| column.fate == Fate::Inferred) {
            column.fate = Fate::Fixed(column.kinds.widest());
        }
    }

    /// How rows are to be read for it.
    pub(crate) fn form(&self, options: &Options, schema: Option<&TableSchema>) -> Form {
        let mut keys = Keys::default();
        for column in &self.columns {
            match &column.path {
                Some(path) if path.is_empty() => {}
                Some(path) => set(&mut keys, path, column.fate),
                None => set(&mut keys, &[column.name.as_bytes().into()], column.fate),
            }
        }
        for (name, column) in schema.into_iter().flat_map(|schema| &schema.columns) {
            let path = path_of(name, options);
            if column.skip {
                set(&mut keys, &path, Fate::Skipped);
            } else if !self.by_path.contains_key(&path) {
                set(&mut keys, &path, column.kind.map_or(Fate::Inferred, Fate::Fixed));
            }
        }
        // What is to be a key or an index has been named as well.
        if let Some(schema) = schema {
            for name in schema.primary_key.iter().chain(&schema.indexes) {
                let is_renamed = schema.columns.values().any(|column| column.name.as_ref() == Some(name));
                let path = path_of(name, options);
                if !is_renamed && !self.by_path.contains_key(&path) && !schema.columns.contains_key(name) {
                    set(&mut keys, &path, Fate::Inferred);
                }
            }
        }
        // One that has become no column is gathered with the others.
        for key in &self.whole {
            if self.more.is_none() || keys.find(ROOT, key).is_some() {
                let number = find_or_add(&mut keys, ROOT, key);
                keys.get_mut(number).whole = true;
            }
        }
        let others = match (self.more, schema.map(|schema| schema.others).unwrap_or_default()) {
            (_, OtherKeys::Skip) => Others::Skipped,
            (_, OtherKeys::Reject) => Others::Refused,
            (Some(_), OtherKeys::Infer) => Others::Gathered(keys.add(GATHERED, b"", Fate::Fixed(Type::Text))),
            (None, OtherKeys::Infer) => Others::Inferred,
        };
        Form {
            flatten: if self.is_flat { 0 } else { options.flatten.min(DEEPEST) },
            languages: options.languages.iter().map(|language| language.as_bytes().into()).collect(),
            keys,
            others,
            longest: options.max_line,
            filename: None,
        }
    }

    /// Columns whose name is not their key's, for later imports.
    pub(crate) fn renamed(&self) -> Vec<(Vec<String>, String)> {
        self.named_by_keys().filter(|(words, name)| words.join("_") != **name).collect()
    }

    /// Columns that have a key, with it.
    pub(crate) fn named_by_keys(&self) -> impl Iterator<Item = (Vec<String>, String)> {
        let of_key = |column: &Column| {
            let words = column.path.as_ref()?.iter().map(|key| String::from_utf8_lossy(key).into_owned());
            let words: Vec<String> = words.collect();
            (!words.is_empty()).then(|| (words, column.name.clone()))
        };
        self.columns.iter().filter_map(of_key)
    }
}

/// The keys that a schema means: where objects are spread, dots are between them.
fn path_of(name: &str, options: &Options) -> Path {
    match options.flatten {
        0 => vec![name.as_bytes().into()],
        _ => name.split('.').map(|part| part.as_bytes().into()).collect(),
    }
}

fn find_or_add(keys: &mut Keys, parent: u32, name: &[u8]) -> u32 {
    keys.find(parent, name).unwrap_or_else(|| keys.add(parent, name, Fate::Inferred))
}

fn set(keys: &mut Keys, path: &[Box<[u8]>], fate: Fate) {
    let number = path.iter().fold(ROOT, |parent, name| find_or_add(keys, parent, name));
    if number != ROOT {
        keys.get_mut(number).fate = fate;
    }
}
