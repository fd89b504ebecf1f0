//! Words that the protocol allows in a column.
//!
//! Owns how such a set is written down: the enum, its texts, and reading it from a row. Which sets there are, the
//! tables say.

/// An enum whose values are stored as lower-case texts: `"what a value is called", pub enum Name { Value = "text" }`.
macro_rules! string_enum {
    ($what:literal, $(#[$about:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $value,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$value),+];

            /// As the database writes it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$value => $text,)+
                }
            }

            /// Reads what the database, or a person, wrote.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }

            pub(crate) fn read(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<Self> {
                let text: String = row.get(column)?;
                Self::parse(&text).ok_or_else(|| crate::db::invalid_value(row, column, &text, $what))
            }
        }
    };
}

pub(crate) use string_enum;
