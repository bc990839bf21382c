//! Keys in JSON.

use serde::Serialize;

use crate::protocol::base64;
use crate::trace::shown_key;

/// A key in JSON: as text, and in base64 if the text has escapes.
#[derive(Serialize)]
pub(super) struct ShownKey {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
}

impl ShownKey {
    pub(super) fn of(bytes: &[u8]) -> ShownKey {
        let key = shown_key(bytes);
        let key_base64 = (key.as_bytes() != bytes).then(|| {
            let mut text = Vec::new();
            base64::encode(bytes, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        ShownKey { key, key_base64 }
    }
}

/// As JSON on one line.
pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    // Writing to memory cannot fail, and the values have no maps with keys of other types than strings.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_no_plain_text_is_shown_in_base64_too() {
        let shown = |key: &[u8]| String::from_utf8(json(&ShownKey::of(key))).unwrap();
        assert_eq!(shown(b"blog:1"), r#"{"key":"blog:1"}"#);
        assert_eq!(shown("zo\u{eb}\"".as_bytes()), r#"{"key":"zoë\""}"#);
        assert_eq!(shown(b"a\xff\\"), r#"{"key":"a\\xff\\\\","key_base64":"Yf9c"}"#);
    }
}
