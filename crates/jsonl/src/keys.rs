//! Numbers the keys of a block's rows.
//!
//! Owns the prediction of the next key. Rows of a file mostly have their keys in the same order, some left out. So a
//! key is compared with the key that followed last time, and with a few after it, before it is looked up.

use std::collections::HashMap;

use crate::types::{Type, TypeSet};

/// Parent of the top-level keys of a row.
pub(crate) const ROOT: u32 = u32::MAX;
const NONE: u32 = u32::MAX;

/// Parent of the synthetic key of the overflow column, which no row has.
pub(crate) const OVERFLOW: u32 = u32::MAX - 1;

/// Number of predicted keys that are compared before a lookup, because a row may leave out some keys.
const MAX_GUESSES: usize = 6;

/// How the values of a key are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ColumnRule {
    /// Stored unchanged; the type is inferred.
    #[default]
    Inferred,
    /// Converted to this type, or the line is rejected.
    Fixed(Type),
    /// Converted to the type that an earlier pass inferred from all valid lines. A value that does not match is kept,
    /// because its line is rejected for another reason.
    Detected(Type),
    /// SQLite converts text that looks like a number; lines with such text are rejected.
    NumericAffinity,
    Skipped,
}

#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) parent: u32,
    pub(crate) name: Box<[u8]>,
    pub(crate) rule: ColumnRule,
    /// Its objects are kept as JSON at any flatten depth.
    pub(crate) whole: bool,
    /// Keys in its objects become columns even if unknown keys do not.
    pub(crate) is_open: bool,
    /// Types of its values in valid rows.
    pub(crate) types: TypeSet,
    /// It needs no escapes, so its bytes can be compared with the text of a line.
    is_plain: bool,
    /// Number of the last row that had it.
    seen: u32,
    /// The key that followed it last, and the first key in its last object.
    next: u32,
    first: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    keys: Vec<Key>,
    numbers: HashMap<(u32, Box<[u8]>), u32>,
    /// Keys in the order in which valid rows had them first.
    order: Vec<u32>,
    /// First key of the last row.
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

    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    /// Names of the keys on the path from the row to this key.
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

    /// Returns the key at the beginning of `bytes`, after its opening quotation mark, if it is one of the keys
    /// predicted after `last`.
    #[inline]
    pub(crate) fn guess(&self, parent: u32, last: Option<u32>, bytes: &[u8]) -> Option<u32> {
        let mut guess = self.following(parent, last);
        for _ in 0..MAX_GUESSES {
            let key = self.keys.get(guess as usize)?;
            let length = key.name.len();
            if key.parent == parent && key.is_plain && bytes.get(length) == Some(&b'"') && bytes[..length] == *key.name
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
        // A lookup has to allocate a key for the map. It is rare, because most predictions are right.
        self.numbers.get(&(parent, name.into())).copied()
    }

    /// Returns the number of a key that followed `last`; adds the key if it is new.
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

    /// Marks the key as seen in this row. Returns false if the row had it already.
    #[inline]
    pub(crate) fn mark(&mut self, number: u32, row: u32) -> bool {
        let key = self.get_mut(number);
        let first = key.seen != row;
        key.seen = row;
        first
    }

    /// Resets the order and the types of all keys.
    pub(crate) fn forget_rows(&mut self) {
        self.order.clear();
        self.keys.iter_mut().for_each(|key| key.types = TypeSet::default());
    }

    /// Records that a valid row has a value of this type.
    #[inline]
    pub(crate) fn note(&mut self, number: u32, kind: TypeSet) {
        let key = &mut self.keys[number as usize];
        if key.types.is_empty() {
            self.order.push(number);
        }
        key.types.insert(kind);
    }
}
