//! OpenAPI schemas of types whose JSON does not follow from their fields.
//!
//! Owns the schemas only; each describes the `Serialize` of its type, which is beside the type.

use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use crate::catalog::{Algorithm, GroupFile, GroupSummary};
use crate::json::NestedJson;
use crate::time::UtcTime;

impl PartialSchema for UtcTime {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl ToSchema for UtcTime {}

/// The schemas of rows have nested JSON.
impl<T: ToSchema> PartialSchema for NestedJson<T> {
    fn schema() -> RefOr<Schema> {
        T::schema()
    }
}

impl<T: ToSchema> ToSchema for NestedJson<T> {
    fn name() -> std::borrow::Cow<'static, str> {
        T::name()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        T::schemas(schemas);
    }
}

/// Makes the schema of a text with these values; `what` describes it.
pub(crate) fn one_of(what: &str, values: &'static [&'static str]) -> RefOr<Schema> {
    let values = values.iter().copied();
    ObjectBuilder::new().schema_type(Type::String).description(Some(what)).enum_values(Some(values)).into()
}

fn text(description: &str) -> Object {
    ObjectBuilder::new().schema_type(Type::String).description(Some(description)).build()
}

fn number(description: &str) -> Object {
    let format = SchemaFormat::KnownFormat(KnownFormat::Int64);
    ObjectBuilder::new().schema_type(Type::Integer).format(Some(format)).description(Some(description)).build()
}

/// Makes an object of required fields.
fn object(description: &str, fields: Vec<(&str, RefOr<Schema>)>) -> RefOr<Schema> {
    let object = ObjectBuilder::new().description(Some(description));
    let add = |object: ObjectBuilder, (name, schema)| object.property(name, schema).required(name);
    fields.into_iter().fold(object, add).into()
}

impl PartialSchema for GroupSummary {
    fn schema() -> RefOr<Schema> {
        let ignored = ObjectBuilder::new().schema_type(Type::Boolean).description(Some("Whether the user ignores it"));
        object(
            "A group of files with the same content",
            vec![
                ("group_key", text("Algorithm, a colon, and the hash in hexadecimal digits").into()),
                ("hash_algorithm", Algorithm::schema()),
                ("content_hash_hex", text("Hash in hexadecimal digits").into()),
                ("file_count", number("Number of file names").into()),
                ("total_size_bytes", number("Sum of the sizes of all file names").into()),
                ("duplicate_waste_bytes", number("Total size without one of the files").into()),
                ("sample_file_id", number("Lowest id among the files").into()),
                ("size_bytes", number("Size of each file").into()),
                ("copies", number("Number of copies; several names of one file are one copy").into()),
                ("reclaimable_bytes", number("Allocated bytes freed if only one copy is kept").into()),
                ("ignored", ignored.into()),
            ],
        )
    }
}

impl ToSchema for GroupSummary {}

impl PartialSchema for GroupFile {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        let time = |types: Type| ObjectBuilder::new().schema_type(types).format(Some(format.clone()));
        let hashed_at = ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::SchemaType::from_iter([Type::String, Type::Null]))
            .format(Some(format.clone()))
            .description(Some("When its hash was stored; null for an empty file"));
        object(
            "A file of a group",
            vec![
                ("file_id", number("Id of the file").into()),
                ("library_id", number("Id of its root").into()),
                ("library_name", text("Name of its root").into()),
                ("relative_path", text("Path relative to the root, encoded as in the database").into()),
                ("size_bytes", number("Size in bytes").into()),
                ("mtime_ns", number("Modification time in nanoseconds since 1970").into()),
                ("hashed_at", hashed_at.into()),
                ("modified_at", time(Type::String).description(Some("Modification time")).into()),
            ],
        )
    }
}

impl ToSchema for GroupFile {}
