//! Structs of options that can grow.

/// Declares a struct of options: its fields with their defaults, and a method that sets each.
macro_rules! options {
    ($(#[$attribute:meta])* pub struct $name:ident {
        $($(#[$doc:meta])+ pub $field:ident: $type:ty = $default:expr,)+
    }) => {
        $(#[$attribute])*
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])+ pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)+ }
            }
        }

        impl $name {
            $($(#[$doc])+
            #[must_use]
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            })+
        }
    };
}

pub(crate) use options;
