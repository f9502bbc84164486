//! Reads requests: query strings with repeated names, JSON bodies, path ids, `Accept`.
//!
//! Promises: nothing is silently ignored (an unknown name is refused with the known ones), and every refusal
//! names its field. axum's own extractors promise neither.

use std::collections::BTreeMap;
use std::fmt;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde_json::Value;
use tenure_store::Paging;

use crate::error::{ApiError, ApiResult};

/// What a request body may weigh: a dag file with everything inline is far below.
pub const LARGEST_BODY: usize = 8 * 1024 * 1024;

const DEFAULT_LIMIT: u32 = 50;
const LARGEST_LIMIT: u32 = 1000;

/// A query string as a struct with `#[serde(deny_unknown_fields)]`. Fields that are lists take repeated names.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map_err(|error| ApiError::BadRequest(format!("The query string cannot be read: {error}.")))?;
        let mut fields = BTreeMap::<String, Vec<String>>::new();
        for (name, value) in pairs.0 {
            fields.entry(name).or_default().push(value);
        }
        let fields = fields.into_iter().map(|(name, texts)| (name.clone(), QueryField { name, texts }));
        let parsed = T::deserialize(MapDeserializer::new(fields));
        parsed.map(Self).map_err(|error| error.in_place("query"))
    }
}

/// A JSON object as a struct. An empty body is an empty object.
#[derive(Debug)]
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> ApiResult<Self> {
        parse_json(&body_bytes(request, state).await?).map(Self)
    }
}

pub async fn body_bytes<S: Send + Sync>(request: Request, state: &S) -> ApiResult<Bytes> {
    Bytes::from_request(request, state).await.map_err(|rejection: BytesRejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::TooLarge(format!("The body is larger than {} MiB.", LARGEST_BODY / 1024 / 1024))
        }
        _ => ApiError::BadRequest(format!("The body cannot be read: {rejection}.")),
    })
}

pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    let value: Value = match bytes {
        [] => Value::Object(Default::default()),
        _ => serde_json::from_slice(bytes)
            .map_err(|error| ApiError::body(format!("not valid JSON: {error}")))?,
    };
    let Value::Object(fields) = value else {
        return Err(ApiError::body("must be a JSON object"));
    };
    let fields = fields.into_iter().map(|(name, value)| (name.clone(), BodyField { name, value }));
    T::deserialize(MapDeserializer::new(fields)).map_err(|error: FieldError| error.in_place("body"))
}

/// Percent-decoded parts of the path.
#[derive(Debug)]
pub struct PathArgs<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathArgs<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let args = Path::<T>::from_request_parts(parts, state).await;
        args.map(|Path(args)| Self(args)).map_err(|error| {
            let message = error.body_text();
            ApiError::Invalid { place: "path", field: None, message }
        })
    }
}

/// Does the client ask for plain text rather than JSON?
pub fn wants_text(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut kinds = accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim());
    let first = kinds.find(|kind| matches!(*kind, "text/plain" | "application/json" | "*/*"));
    first == Some("text/plain")
}

/// `order_by` in the API's words is translated by `orders`, a table of (ours to the client, the store's).
pub fn paging(
    limit: Option<u32>,
    offset: Option<u32>,
    order_by: &[String],
    orders: &[(&str, &str)],
) -> ApiResult<Paging> {
    let limit = match limit {
        None | Some(0) => DEFAULT_LIMIT,
        Some(limit) => limit.min(LARGEST_LIMIT),
    };
    Ok(Paging { limit, offset: offset.unwrap_or(0), order_by: order(order_by, orders)? })
}

fn order(order_by: &[String], orders: &[(&str, &str)]) -> ApiResult<Option<String>> {
    let [wanted] = order_by else {
        return match order_by {
            [] => Ok(None),
            _ => Err(ApiError::BadRequest("order_by takes one field only.".into())),
        };
    };
    let (sign, name) = match wanted.strip_prefix('-') {
        Some(name) => ("-", name),
        None => ("", wanted.as_str()),
    };
    match orders.iter().find(|(api, _)| *api == name) {
        Some((_, column)) => Ok(Some(format!("{sign}{column}"))),
        None => {
            let known: Vec<_> = orders.iter().map(|(api, _)| *api).collect();
            Err(ApiError::BadRequest(format!(
                "Ordering by {name:?} is not possible; use one of {} (with a leading - for descending).",
                known.join(", ")
            )))
        }
    }
}

/// Says that a well-known option of Airflow's API is not there yet, instead of ignoring it.
pub fn unsupported(field: &'static str, why: &str) -> ApiError {
    ApiError::BadRequest(format!("`{field}` is not supported: {why}."))
}

#[derive(Debug)]
struct FieldError {
    field: Option<String>,
    message: String,
}

impl FieldError {
    fn at(mut self, field: &str) -> Self {
        self.field.get_or_insert_with(|| field.to_owned());
        self
    }

    fn in_place(self, place: &'static str) -> ApiError {
        ApiError::Invalid { place, field: self.field, message: self.message }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FieldError {}

impl serde::de::Error for FieldError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { field: None, message: message.to_string() }
    }

    fn missing_field(field: &'static str) -> Self {
        Self { field: Some(field.to_owned()), message: "Field required".into() }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let message = format!("not known here; known are {}", expected.join(", "));
        Self { field: Some(field.to_owned()), message }
    }
}

impl From<serde_json::Error> for FieldError {
    fn from(error: serde_json::Error) -> Self {
        Self::custom(error)
    }
}

/// All texts that a query string gives under one name.
#[derive(Debug)]
struct QueryField {
    name: String,
    texts: Vec<String>,
}

impl QueryField {
    fn single(mut self) -> Result<(String, String), FieldError> {
        match (self.texts.pop(), self.texts.is_empty()) {
            (Some(text), true) => Ok((self.name, instant_with_plus(text))),
            _ => Err(FieldError::custom("given more than once").at(&self.name)),
        }
    }

    fn parsed<P: std::str::FromStr>(self, wanted: &str) -> Result<P, FieldError> {
        let (name, text) = self.single()?;
        text.parse().map_err(|_| FieldError::custom(format!("{text:?} is not {wanted}")).at(&name))
    }
}

/// `2026-01-01T00:00:00+02:00` that was sent without escaping its plus has a blank there.
fn instant_with_plus(text: String) -> String {
    match text.rsplit_once(' ') {
        Some((time, zone)) if time.contains('T') && zone.len() == 5 && zone.contains(':') => {
            format!("{time}+{zone}")
        }
        _ => text,
    }
}

impl IntoDeserializer<'_, FieldError> for QueryField {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! parse_whole_numbers {
    ($($method:ident $visit:ident $kind:ty,)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
            visitor.$visit(self.parsed::<$kind>("a whole number that fits here")?)
        })*
    };
}

impl<'de> Deserializer<'de> for QueryField {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        let (name, text) = self.single()?;
        visitor.visit_string(text).map_err(|error: FieldError| error.at(&name))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        let (name, text) = self.single()?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" => visitor.visit_bool(true),
            "false" | "0" => visitor.visit_bool(false),
            _ => Err(FieldError::custom(format!("{text:?} is neither true nor false")).at(&name)),
        }
    }

    parse_whole_numbers! {
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        let Self { name, texts } = self;
        let items = texts.into_iter().map(|text| Self { name: name.clone(), texts: vec![text] });
        SeqDeserializer::new(items).deserialize_seq(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        kind: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        let (name, text) = self.single()?;
        let text: serde::de::value::StringDeserializer<FieldError> = text.into_deserializer();
        text.deserialize_enum(kind, variants, visitor).map_err(|error| error.at(&name))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// One field of a JSON object, which puts its name to whatever is wrong inside.
#[derive(Debug)]
struct BodyField {
    name: String,
    value: Value,
}

impl IntoDeserializer<'_, FieldError> for BodyField {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for BodyField {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        let Self { name, value } = self;
        value.deserialize_any(visitor).map_err(|error| FieldError::from(error).at(&name))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        kind: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        let Self { name, value } = self;
        value.deserialize_enum(kind, variants, visitor).map_err(|error| FieldError::from(error).at(&name))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}
