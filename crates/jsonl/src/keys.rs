//! The keys of a block's rows, each with a number.
//!
//! Owns the guess of which key comes next. Rows of a file mostly have their keys in one order, some left out; so
//! a key is compared with the one that followed last time, and a few after it, before it is looked up.

use std::collections::HashMap;

use crate::types::{Type, TypeSet};

/// The parent of keys that are in no object but the row.
pub(crate) const ROOT: u32 = u32::MAX;
const NONE: u32 = u32::MAX;

/// The parent of the one key that no row has: the place for keys that are put together.
pub(crate) const OVERFLOW: u32 = u32::MAX - 1;

/// How many keys are tried before one is looked up: as many as may be left out in a row.
const MAX_GUESSES: usize = 6;

/// What becomes of a key's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnRule {
    /// Stored as they are; the type is found out.
    Inferred,
    /// Made to fit, or the line is refused.
    Fixed(Type),
    /// Made to fit: all good lines of the file do. A line that does not is bad for another reason, which is to be found.
    Detected(Type),
    /// SQLite makes numbers of what looks like one: what that would change is refused.
    NumericAffinity,
    Skipped,
}

#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) parent: u32,
    pub(crate) name: Box<[u8]>,
    pub(crate) rule: ColumnRule,
    /// Objects are not spread, however deep one is asked to go.
    pub(crate) whole: bool,
    /// Keys in its objects become columns, though unknown ones do not.
    pub(crate) is_open: bool,
    /// Of the values in good rows.
    pub(crate) types: TypeSet,
    /// It is written as it is, without escapes: only then can it be told from its bytes.
    is_plain: bool,
    /// The row that had it last.
    seen: u32,
    /// The key that came after it, and the first one in it.
    next: u32,
    first: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    keys: Vec<Key>,
    numbers: HashMap<(u32, Box<[u8]>), u32>,
    /// In the order in which good rows had them first.
    order: Vec<u32>,
    /// The first key of a row.
    first: Option<u32>,
}

impl Keys {
    pub(crate) fn get(&self, number: u32) -> &Key {
        &self.keys[number as usize]
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> &mut Key {
        &mut self.keys[number as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Those that good rows had, in order.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    /// The names from the row to the key.
    pub(crate) fn path(&self, number: u32) -> Vec<&[u8]> {
        let mut path = Vec::new();
        let mut at = number;
        while at < OVERFLOW {
            let key = self.get(at);
            path.push(&*key.name);
            at = key.parent;
        }
        path.reverse();
        path
    }

    /// The key that stands at the beginning of `bytes`, after its opening quote, if it is one of those that are
    /// likely after `last`.
    #[inline]
    pub(crate) fn guess(&self, parent: u32, last: Option<u32>, bytes: &[u8]) -> Option<u32> {
        let mut guess = self.following(parent, last);
        for _ in 0..MAX_GUESSES {
            let key = self.keys.get(guess as usize)?;
            let length = key.name.len();
            if key.parent == parent
                && key.is_plain
                && bytes.get(length) == Some(&b'"')
                && bytes[..length] == *key.name
            {
                return Some(guess);
            }
            guess = key.next;
        }
        None
    }

    #[inline]
    fn following(&self, parent: u32, last: Option<u32>) -> u32 {
        match last {
            Some(last) => self.get(last).next,
            None if parent == ROOT => self.first.unwrap_or(NONE),
            None => self.get(parent).first,
        }
    }

    pub(crate) fn find(&self, parent: u32, name: &[u8]) -> Option<u32> {
        // The map wants a key of its own kind to look with. Guesses are mostly right, so this is rare.
        self.numbers.get(&(parent, name.into())).copied()
    }

    /// The key's number, a new one if need be. It came after `last`.
    pub(crate) fn intern(&mut self, parent: u32, last: Option<u32>, name: &[u8]) -> u32 {
        let number = self.find(parent, name).unwrap_or_else(|| self.add(parent, name, ColumnRule::Inferred));
        match last {
            Some(last) => self.get_mut(last).next = number,
            None if parent == ROOT => self.first = Some(number),
            None => self.get_mut(parent).first = number,
        }
        number
    }

    pub(crate) fn add(&mut self, parent: u32, name: &[u8], rule: ColumnRule) -> u32 {
        let number = self.keys.len() as u32;
        self.keys.push(Key {
            parent,
            name: name.into(),
            rule,
            whole: false,
            is_open: parent < OVERFLOW && self.get(parent).is_open,
            types: TypeSet::default(),
            is_plain: !name.iter().any(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)),
            seen: 0,
            next: NONE,
            first: NONE,
        });
        self.numbers.insert((parent, name.into()), number);
        number
    }

    /// Marks the key as seen in this row. Whether it is the first time.
    #[inline]
    pub(crate) fn mark(&mut self, number: u32, row: u32) -> bool {
        let key = self.get_mut(number);
        let first = key.seen != row;
        key.seen = row;
        first
    }

    /// Forgets which rows there were.
    pub(crate) fn forget_rows(&mut self) {
        self.order.clear();
        self.keys.iter_mut().for_each(|key| key.types = TypeSet::default());
    }

    /// A good row had a value of this kind.
    #[inline]
    pub(crate) fn note(&mut self, number: u32, kind: TypeSet) {
        let key = &mut self.keys[number as usize];
        if key.types.is_empty() {
            self.order.push(number);
        }
        key.types.insert(kind);
    }
}
