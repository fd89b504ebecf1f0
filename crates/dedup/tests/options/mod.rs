//! A macro that sets fields of option structs, which have no literals outside of their crate.

/// Returns options with the given fields, and the default for the others.
macro_rules! options {
    ($kind:ty { $($field:ident $(: $value:expr)?),* $(,)? $(; ..$base:expr)? }) => {{
        #[allow(unused_mut, reason = "without a field nothing is changed")]
        let mut options = options!(@base $kind $(, $base)?);
        $(options.$field = options!(@value $field $(, $value)?);)*
        options
    }};
    (@base $kind:ty) => { <$kind>::default() };
    (@base $kind:ty, $base:expr) => { $base };
    (@value $field:ident) => { $field };
    (@value $field:ident, $value:expr) => { $value };
}
