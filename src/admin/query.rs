//! The query of a URL: names and values, percent-encoded.

/// The most parameters of a query.
const MAX_PARAMETERS: usize = 32;

/// The parameters of a query, in their order. A value is bytes, because keys are; it is empty if there is none.
///
/// # Errors
/// There are more than [`MAX_PARAMETERS`], or a `%` is not followed by two hexadecimal digits: a sentence.
pub(super) fn parameters(query: &str) -> Result<Vec<(String, Vec<u8>)>, String> {
    let parts: Vec<&str> = query.split('&').filter(|part| !part.is_empty()).collect();
    if parts.len() > MAX_PARAMETERS {
        return Err(format!("a query has at most {MAX_PARAMETERS} parameters"));
    }
    let parameter = |part: &&str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let name = String::from_utf8_lossy(&decoded(name)?).into_owned();
        Ok((name, decoded(value)?))
    };
    parts.iter().map(parameter).collect()
}

/// `%20` and `+` are a space.
fn decoded(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        rest = match rest {
            [] => return Ok(bytes),
            [b'%', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |digit: &u8| (*digit as char).to_digit(16).unwrap_or_default() as u8;
                bytes.push(digit(high) << 4 | digit(low));
                rest
            }
            [b'%', ..] => return Err(format!("{text}: % must be followed by two hexadecimal digits")),
            [b'+', rest @ ..] => {
                bytes.push(b' ');
                rest
            }
            [byte, rest @ ..] => {
                bytes.push(*byte);
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_bytes() {
        let all = parameters("key=a%20b%00%fF*&&rule=x+y&empty=&none&z=%2B=").unwrap();
        let of = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
        assert_eq!(
            all,
            [of("key", b"a b\0\xff*"), of("rule", b"x y"), of("empty", b""), of("none", b""), of("z", b"+=")]
        );
        assert_eq!(parameters(""), Ok(Vec::new()));
    }

    #[test]
    fn a_mistake_is_named() {
        for (query, expected) in [("a=%2", "%2: % must"), ("a=%zz", "%zz: % must")] {
            let error = parameters(query).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_number_of_parameters_is_limited() {
        let query = |n: usize| vec!["a=1"; n].join("&");
        assert_eq!(parameters(&query(MAX_PARAMETERS)).unwrap().len(), MAX_PARAMETERS);
        assert!(parameters(&query(MAX_PARAMETERS + 1)).is_err());
    }
}
