//! Splits text into commands and words as a POSIX shell does: quotes, `$'…'` as browsers write it, line
//! continuations, comments. The crate `shlex` supports neither `$'…'` nor several commands nor line
//! numbers.

/// A word of a command, with the line where it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Word {
    /// A body in `$'…'` may be binary.
    pub(super) bytes: Vec<u8>,
    pub(super) line: usize,
}

/// Splits a text into commands.
///
/// # Errors
/// An unclosed quote, by line.
pub(super) fn split(text: &str, warnings: &mut Vec<String>) -> Result<Vec<Vec<Word>>, String> {
    let mut reader = Reader {
        rest: text.strip_prefix('\u{feff}').unwrap_or(text).as_bytes(),
        line: 1,
        word: None,
        commands: vec![Vec::new()],
        warnings,
    };
    while let Some(byte) = reader.next() {
        reader.unquoted(byte)?;
    }
    reader.end_word();
    Ok(reader.commands.into_iter().filter(|command| !command.is_empty()).collect())
}

struct Reader<'a> {
    rest: &'a [u8],
    line: usize,
    word: Option<Word>,
    commands: Vec<Vec<Word>>,
    warnings: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        self.line += usize::from(byte == b'\n');
        Some(byte)
    }

    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn push(&mut self, byte: u8) {
        self.begin().bytes.push(byte);
    }

    /// Starts a word if there is none; `''` is an empty word.
    fn begin(&mut self) -> &mut Word {
        let line = self.line;
        self.word.get_or_insert_with(|| Word { bytes: Vec::new(), line })
    }

    fn end_word(&mut self) {
        if let (Some(word), Some(command)) = (self.word.take(), self.commands.last_mut()) {
            command.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.commands.push(Vec::new());
    }

    fn warn(&mut self, text: &str) {
        let warning = format!("line {}: {text}", self.line);
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    fn unquoted(&mut self, byte: u8) -> Result<(), String> {
        match byte {
            b'\'' => return self.single(),
            b'"' => return self.double(),
            b'$' if self.peek() == Some(b'\'') => {
                self.next();
                return self.ansi();
            }
            b'$' if self.peek() == Some(b'"') => {}
            b'\\' => self.escaped(),
            b'\n' | b';' => self.end_command(),
            b' ' | b'\t' | b'\r' => self.end_word(),
            b'#' if self.word.is_none() => {
                while self.peek().is_some_and(|byte| byte != b'\n') {
                    self.next();
                }
            }
            b'&' | b'|' | b'>' | b'<' if self.word.is_none() => self.operator(byte),
            b'^' if self.peek().is_some_and(|next| next == b'"' || next == b'\n') => {
                self.warn("^ is an escape of cmd.exe: copy as cURL (bash) instead");
            }
            _ => {
                let begins = self
                    .peek()
                    .is_some_and(|next| next.is_ascii_alphabetic() || b"{(_".contains(&next));
                if byte == b'`' || byte == b'$' && begins {
                    self.warn("$ and ` are used literally: this is not a shell");
                }
                self.push(byte);
            }
        }
        Ok(())
    }

    /// Ends a command at an operator. Pipes and redirections are skipped to the end of the line.
    fn operator(&mut self, byte: u8) {
        while self.peek() == Some(byte) {
            self.next();
        }
        self.end_command();
        if byte != b'&' {
            self.warn("everything after |, > or < is ignored: this is not a shell");
            while self.peek().is_some_and(|byte| byte != b'\n') {
                self.next();
            }
        }
    }

    fn escaped(&mut self) {
        match self.next() {
            Some(b'\n') | None => {}
            Some(b'\r') if self.peek() == Some(b'\n') => {
                self.next();
            }
            Some(byte) => self.push(byte),
        }
    }

    fn single(&mut self) -> Result<(), String> {
        let line = self.begin_quoted();
        while let Some(byte) = self.next() {
            match byte {
                b'\'' => return Ok(()),
                byte => self.push(byte),
            }
        }
        Err(format!("line {line}: the quote ' is not closed"))
    }

    fn double(&mut self) -> Result<(), String> {
        let line = self.begin_quoted();
        while let Some(byte) = self.next() {
            match byte {
                b'"' => return Ok(()),
                b'\\' => match self.next() {
                    Some(b'\n') => {}
                    Some(byte @ (b'"' | b'\\' | b'$' | b'`')) => self.push(byte),
                    Some(byte) => {
                        self.push(b'\\');
                        self.push(byte);
                    }
                    None => break,
                },
                byte => self.push(byte),
            }
        }
        Err(format!("line {line}: the quote \" is not closed"))
    }

    fn begin_quoted(&mut self) -> usize {
        self.begin();
        self.line
    }

    /// Reads `$'…'`, as bash and zsh do.
    fn ansi(&mut self) -> Result<(), String> {
        let line = self.begin_quoted();
        while let Some(byte) = self.next() {
            match byte {
                b'\'' => return Ok(()),
                b'\\' => self.ansi_escape(),
                byte => self.push(byte),
            }
        }
        Err(format!("line {line}: the quote $' is not closed"))
    }

    fn ansi_escape(&mut self) {
        let Some(byte) = self.next() else { return };
        let plain = match byte {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 0x07,
            b'b' => 0x08,
            b'e' | b'E' => 0x1b,
            b'f' => 0x0c,
            b'v' => 0x0b,
            b'\\' | b'\'' | b'"' | b'?' => byte,
            b'x' => return self.number(None, 16, 2, byte),
            b'u' => return self.character(4, byte),
            b'U' => return self.character(8, byte),
            b'0'..=b'7' => return self.number(Some(byte), 8, 3, byte),
            _ => {
                self.push(b'\\');
                byte
            }
        };
        self.push(plain);
    }

    /// Reads a byte by its number, of at most `most` digits; the first may have been read already.
    fn number(&mut self, first: Option<u8>, radix: u32, most: usize, escape: u8) {
        let (value, count) = self.digits(first, radix, most);
        match count {
            0 => [b'\\', escape].into_iter().for_each(|byte| self.push(byte)),
            // Of a larger number, such as \777, the lower eight bits count.
            _ => self.push(value as u8),
        }
    }

    /// Reads a character by its Unicode number. A surrogate pair, as browsers write characters beyond
    /// U+FFFF, is one character.
    fn character(&mut self, most: usize, escape: u8) {
        let (mut value, count) = self.digits(None, 16, most);
        if count == 0 {
            return [b'\\', escape].into_iter().for_each(|byte| self.push(byte));
        }
        if (0xd800..0xdc00).contains(&value)
            && let Some(rest) = self.rest.strip_prefix(b"\\u")
        {
            self.rest = rest;
            let (low, _) = self.digits(None, 16, 4);
            value = 0x10000 + ((value - 0xd800) << 10) + (low.wrapping_sub(0xdc00) & 0x3ff);
        }
        let character = char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER);
        self.begin().bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
    }

    fn digits(&mut self, first: Option<u8>, radix: u32, most: usize) -> (u32, usize) {
        let digit = |byte: u8| char::from(byte).to_digit(radix);
        let (mut value, mut count) = (0, 0);
        if let Some(first) = first.and_then(digit) {
            (value, count) = (first, 1);
        }
        while count < most
            && let Some(next) = self.peek().and_then(digit)
        {
            self.next();
            value = value * radix + next;
            count += 1;
        }
        (value, count)
    }
}
