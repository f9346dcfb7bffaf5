//! Reads JSON: what softclose itself wrote into shared data, and the plugin configuration.
//!
//! serde_json writes it. Its reader explains each mistake, with line, column and the shortest form of any float, and that is a
//! quarter of the module; here whatever is wrong is only not taken. Numbers other than whole ones are read past.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::CowStrDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// Deeper than anything that softclose writes or takes; a stack that runs out would be a trap.
const DEPTH_MAX: u32 = 32;

/// `bytes` as a value, if they are one and nothing else.
pub(crate) fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Option<T> {
    let mut reader = Reader::of(std::str::from_utf8(bytes).ok()?);
    let value = T::deserialize(&mut reader).ok()?;
    reader.peek().is_none().then_some(value)
}

/// The members of the object that `text` is: each name, and its value as it stands there.
pub(crate) fn members(text: &str) -> Option<Vec<(String, &str)>> {
    let mut reader = Reader::of(text);
    let mut members = Vec::new();
    reader.take(b'{').ok()?;
    while reader.has_another(b'}', members.is_empty()).ok()? {
        let name = reader.string().ok()?.into_owned();
        reader.take(b':').ok()?;
        members.push((name, reader.raw().ok()?));
    }
    reader.peek().is_none().then_some(members)
}

/// The string that `text` is.
pub(crate) fn string(text: &str) -> Option<String> {
    let mut reader = Reader::of(text);
    let string = reader.string().ok()?.into_owned();
    reader.peek().is_none().then_some(string)
}

/// It is not what was expected; what it is instead concerns nobody.
#[derive(Debug)]
struct Unread;

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unread")
    }
}

impl std::error::Error for Unread {}

impl Error for Unread {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

struct Reader<'de> {
    text: &'de str,
    at: usize,
    depth: u32,
}

impl<'de> Reader<'de> {
    fn of(text: &'de str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// The next byte as it is.
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.byte() {
            self.at += 1;
        }
        self.byte()
    }

    fn take(&mut self, expected: u8) -> Result<(), Unread> {
        if self.peek() != Some(expected) {
            return Err(Unread);
        }
        self.at += 1;
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<(), Unread> {
        let found = self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word));
        self.at += word.len();
        if found { Ok(()) } else { Err(Unread) }
    }

    /// Whether another member comes before the `end` of an object or array; takes the comma or the end.
    fn has_another(&mut self, end: u8, first: bool) -> Result<bool, Unread> {
        if self.peek() == Some(end) {
            self.at += 1;
            return Ok(false);
        }
        if !first {
            self.take(b',')?;
        }
        Ok(true)
    }

    /// The next value as it stands in the text.
    fn raw(&mut self) -> Result<&'de str, Unread> {
        self.peek();
        let start = self.at;
        self.skip()?;
        self.text.get(start..self.at).ok_or(Unread)
    }

    fn skip(&mut self) -> Result<(), Unread> {
        match self.peek().ok_or(Unread)? {
            b'n' => self.word("null"),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'"' => self.string().map(drop),
            b'{' => self.skip_members(b'{', b'}'),
            b'[' => self.skip_members(b'[', b']'),
            _ => self.number().map(drop),
        }
    }

    fn skip_members(&mut self, begin: u8, end: u8) -> Result<(), Unread> {
        self.deeper()?;
        self.take(begin)?;
        let mut first = true;
        while self.has_another(end, first)? {
            if begin == b'{' {
                self.peek();
                self.string()?;
                self.take(b':')?;
            }
            self.skip()?;
            first = false;
        }
        self.depth -= 1;
        Ok(())
    }

    fn deeper(&mut self) -> Result<(), Unread> {
        self.depth += 1;
        if self.depth > DEPTH_MAX { Err(Unread) } else { Ok(()) }
    }

    /// The next number as it stands in the text.
    fn number(&mut self) -> Result<&'de str, Unread> {
        let start = self.at;
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        let zero = self.byte() == Some(b'0');
        let whole = self.digits()?;
        if zero && whole > 1 {
            return Err(Unread);
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            self.digits()?;
        }
        self.text.get(start..self.at).ok_or(Unread)
    }

    /// How many digits come next: one at least.
    fn digits(&mut self) -> Result<usize, Unread> {
        let start = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { Err(Unread) } else { Ok(self.at - start) }
    }

    fn string(&mut self) -> Result<Cow<'de, str>, Unread> {
        self.take(b'"')?;
        let mut unescaped = String::new();
        let mut start = self.at;
        loop {
            match self.byte().ok_or(Unread)? {
                b'"' => {
                    let rest = self.text.get(start..self.at).ok_or(Unread)?;
                    self.at += 1;
                    if unescaped.is_empty() {
                        return Ok(Cow::Borrowed(rest));
                    }
                    unescaped.push_str(rest);
                    return Ok(Cow::Owned(unescaped));
                }
                b'\\' => {
                    unescaped.push_str(self.text.get(start..self.at).ok_or(Unread)?);
                    self.at += 1;
                    unescaped.push(self.escaped()?);
                    start = self.at;
                }
                control if control < b' ' => return Err(Unread),
                _ => self.at += 1,
            }
        }
    }

    /// What an escape stands for; its backslash is taken.
    fn escaped(&mut self) -> Result<char, Unread> {
        let byte = self.byte().ok_or(Unread)?;
        self.at += 1;
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unicode(),
            _ => return Err(Unread),
        };
        Ok(char::from(plain))
    }

    fn unicode(&mut self) -> Result<char, Unread> {
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or(Unread);
        }
        // The first half of a pair.
        self.word("\\u")?;
        let second = self.four_digits()?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(Unread);
        }
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or(Unread)
    }

    fn four_digits(&mut self) -> Result<u32, Unread> {
        let digits = self.text.get(self.at..self.at + 4).ok_or(Unread)?;
        self.at += 4;
        // `from_str_radix` takes a sign.
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(Unread);
        }
        u32::from_str_radix(digits, 16).map_err(|_| Unread)
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Unread;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        match self.peek().ok_or(Unread)? {
            b'n' => self.word("null").and_then(|()| visitor.visit_unit()),
            b't' => self.word("true").and_then(|()| visitor.visit_bool(true)),
            b'f' => self.word("false").and_then(|()| visitor.visit_bool(false)),
            b'"' => match self.string()? {
                Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
                Cow::Owned(text) => visitor.visit_string(text),
            },
            b'{' => {
                self.deeper()?;
                self.at += 1;
                let value = visitor.visit_map(Members { reader: self, first: true })?;
                self.depth -= 1;
                Ok(value)
            }
            b'[' => {
                self.deeper()?;
                self.at += 1;
                let value = visitor.visit_seq(Members { reader: self, first: true })?;
                self.depth -= 1;
                Ok(value)
            }
            _ => visitor.visit_u64(self.number()?.parse().map_err(|_| Unread)?),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        if self.peek() == Some(b'n') {
            return self.word("null").and_then(|()| visitor.visit_none());
        }
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        if self.peek() != Some(b'{') {
            let name: CowStrDeserializer<'de, Unread> = self.string()?.into_deserializer();
            return visitor.visit_enum(name);
        }
        self.deeper()?;
        self.at += 1;
        let value = visitor.visit_enum(&mut *self)?;
        self.take(b'}')?;
        self.depth -= 1;
        Ok(value)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Unread> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier
    }
}

/// The members of an object or an array.
struct Members<'reader, 'de> {
    reader: &'reader mut Reader<'de>,
    first: bool,
}

impl<'de> SeqAccess<'de> for Members<'_, 'de> {
    type Error = Unread;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Unread> {
        if !self.reader.has_another(b']', std::mem::take(&mut self.first))? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> MapAccess<'de> for Members<'_, 'de> {
    type Error = Unread;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unread> {
        if !self.reader.has_another(b'}', std::mem::take(&mut self.first))? {
            return Ok(None);
        }
        if self.reader.peek() != Some(b'"') {
            return Err(Unread);
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Unread> {
        self.reader.take(b':')?;
        seed.deserialize(&mut *self.reader)
    }
}

/// A variant with data: `{"name": data}`.
impl<'de> EnumAccess<'de> for &mut Reader<'de> {
    type Error = Unread;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Unread> {
        if self.peek() != Some(b'"') {
            return Err(Unread);
        }
        let variant = seed.deserialize(&mut *self)?;
        self.take(b':')?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Reader<'de> {
    type Error = Unread;

    fn unit_variant(self) -> Result<(), Unread> {
        Deserialize::deserialize(self)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Unread> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, Unread> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _fields: &'static [&'static str], visitor: V) -> Result<V::Value, Unread> {
        self.deserialize_any(visitor)
    }
}

#[cfg(test)]
mod tests;
