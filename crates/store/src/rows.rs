//! Rows of tables and the values of their columns.
//!
//! Owns how a column is read, and the macros that declare an enum stored as text and a struct for the rows of a table.

use crate::sqlite::{Row, SqlError, SqlResult};
use crate::time::UtcTime;

/// A value of a column.
pub(crate) trait Column: Sized {
    fn read(row: &Row<'_>, column: &str) -> SqlResult<Self>;
}

/// Reads a column by its name.
pub(crate) fn column<T: Column>(row: &Row<'_>, column: &str) -> SqlResult<T> {
    T::read(row, column)
}

macro_rules! plain_columns {
    ($($plain:ty),+) => {
        $(impl Column for $plain {
            fn read(row: &Row<'_>, column: &str) -> SqlResult<Self> {
                row.get(column)
            }
        })+
    };
}

/// A number that is not negative.
impl Column for u64 {
    fn read(row: &Row<'_>, column: &str) -> SqlResult<Self> {
        Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
    }
}

plain_columns!(bool, f64, i32, i64, u32, String, Option<i32>, Option<i64>, Option<u32>, Option<String>);

/// Text that is not a time is an error, because the end of a lease must not be guessed.
impl Column for Option<UtcTime> {
    fn read(row: &Row<'_>, column: &str) -> SqlResult<Self> {
        let text: Option<String> = row.get(column)?;
        text.map(|text| UtcTime::parse(&text).ok_or_else(|| invalid_value(row, column, &text, "a UTC time")))
            .transpose()
    }
}

impl Column for UtcTime {
    fn read(row: &Row<'_>, column: &str) -> SqlResult<Self> {
        Option::read(row, column)?.ok_or_else(|| invalid_value(row, column, "NULL", "a UTC time"))
    }
}

/// Makes the error for a value that the protocol does not allow.
pub(crate) fn invalid_value(row: &Row<'_>, column: &str, found: &str, expected: &str) -> SqlError {
    let index = row.as_ref().column_index(column).unwrap_or(0);
    let text = format!("column {column} is {found:?}, expected {expected}");
    SqlError::FromSqlConversionFailure(index, crate::sqlite::Type::Text, text.into())
}

/// Declares a struct for the rows of a table, in which each field is the column of its name. A column that contains
/// JSON is marked with the type that the JSON has: `payload: String as Object` for an object, `as Value` for any.
macro_rules! table_row {
    ($(#[$attribute:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $field_vis:vis $field:ident: $type:ty $(as $json:ident)?,)+
    }) => {
        $(#[$attribute])*
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[allow(missing_docs, reason = "each field is the column of its name")]
        $vis struct $name {
            $(
                $(#[$doc])*
                #[cfg_attr(feature = "openapi", schema(required = true $(, value_type = $json)?))]
                $field_vis $field: $type,
            )+
        }

        impl $name {
            pub(crate) fn read(row: &$crate::sqlite::Row<'_>) -> $crate::sqlite::SqlResult<Self> {
                Ok($name { $($field: $crate::rows::column(row, stringify!($field))?,)+ })
            }
        }

        impl $crate::json::JsonRow for $name {
            fn serialize_nested<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct as _;
                let count = [$(stringify!($field)),+].len();
                let mut fields = serializer.serialize_struct(stringify!($name), count)?;
                $($crate::rows::table_row!(@field fields, self.$field, $field $(as $json)?);)+
                fields.end()
            }
        }
    };
    (@field $fields:ident, $value:expr, $field:ident) => {
        $fields.serialize_field(stringify!($field), &$value)?;
    };
    (@field $fields:ident, $value:expr, $field:ident as $json:ident) => {
        $fields.serialize_field(stringify!($field), &$crate::json::nested(&$value))?;
    };
}

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
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $crate::openapi::one_of($what, &[$($text),+])
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}

        impl $crate::rows::Column for $name {
            fn read(row: &$crate::sqlite::Row<'_>, column: &str) -> $crate::sqlite::SqlResult<Self> {
                let text: String = row.get(column)?;
                Self::parse(&text).ok_or_else(|| $crate::rows::invalid_value(row, column, &text, $what))
            }
        }
    };
}

pub(crate) use {string_enum, table_row};
