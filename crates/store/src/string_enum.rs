//! Enums that are stored as text.
//!
//! Owns the macro that declares such an enum, its texts, and how it is read from a row.

/// Declares an enum whose values are stored as lower-case text: `"name of a value", pub enum Name { Value = "text" }`.
macro_rules! string_enum {
    ($what:literal, $(#[$attribute:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $value,)+
        }

        impl $name {
            /// All values, in order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$value),+];

            /// Returns the text stored in the database.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$value => $text,)+
                }
            }

            /// Parses a stored value or user input.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }

            pub(crate) fn read(row: &$crate::sqlite::Row<'_>, column: &str) -> $crate::sqlite::SqlResult<Self> {
                let text: String = row.get(column)?;
                Self::parse(&text).ok_or_else(|| crate::sqlite::db::invalid_value(row, column, &text, $what))
            }
        }
    };
}

pub(crate) use string_enum;
