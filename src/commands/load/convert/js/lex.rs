//! Text to tokens.

/// A token, its line, and whether it is the first of its line.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Token {
    pub(super) line: usize,
    pub(super) is_first: bool,
    pub(super) of: Lexeme,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Lexeme {
    Name(String),
    Number(f64),
    Text(String),
    Template(Vec<Piece>),
    /// A regular expression, of which nothing is kept.
    Pattern,
    Sign(&'static str),
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Piece {
    Text(String),
    Tokens(Vec<Token>),
}

/// Longest first.
const SIGNS: [&str; 50] = [
    ">>>=", "...", "===", "!==", "**=", "<<=", ">>=", "&&=", "||=", "??=", ">>>", "=>", "==", "!=",
    "<=", ">=", "&&", "||", "??", "?.", "++", "--", "+=", "-=", "*=", "/=", "%=", "**", "<<", ">>",
    "{", "}", "(", ")", "[", "]", ";", ",", "<", ">", "+", "-", "*", "/", "%", "!", "=", ".", ":",
    "?",
];
/// Signs that are only read over.
const RARE_SIGNS: [&str; 6] = ["&", "|", "^", "~", "@", "#"];
/// How deep templates nest.
const NESTING_MAX: usize = 16;

pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0, line: 1 }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn next_char(&mut self) -> Option<char> {
        let next = self.rest().chars().next()?;
        self.at += next.len_utf8();
        self.line += usize::from(next == '\n');
        Some(next)
    }

    /// Reads all tokens, or those up to the brace that closes a placeholder.
    ///
    /// # Errors
    /// Text, a comment or a template that does not end, with its line.
    pub(super) fn tokens(&mut self, depth: usize) -> Result<Vec<Token>, String> {
        let mut tokens: Vec<Token> = Vec::new();
        let (mut braces, mut before_line) = (0_usize, 0);
        loop {
            self.blanks()?;
            let (line, is_first) = (self.line, self.line != before_line);
            before_line = line;
            let Some(char) = self.rest().chars().next() else {
                return if depth == 0 { Ok(tokens) } else { Err(self.unclosed(line, "`")) };
            };
            let of = if char.is_alphabetic() || matches!(char, '_' | '$') {
                let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$');
                let rest = self.rest();
                let name = rest.split(|c| !is_part(c)).next().unwrap_or_default();
                self.at += name.len();
                Lexeme::Name(name.to_owned())
            } else if char.is_ascii_digit() {
                let rest = self.rest();
                let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
                let digits = rest.split(|c| !is_part(c)).next().unwrap_or_default();
                self.at += digits.len();
                let number = digits.replace('_', "").parse();
                Lexeme::Number(number.map_err(|_| format!("line {line}: number {digits:?}"))?)
            } else if matches!(char, '"' | '\'') {
                Lexeme::Text(self.quoted(char)?)
            } else if char == '`' {
                Lexeme::Template(self.template(depth)?)
            } else if char == '/' && is_pattern_next(tokens.last()) {
                self.pattern()?;
                Lexeme::Pattern
            } else {
                let mut signs = SIGNS.iter().chain(&RARE_SIGNS);
                let sign = signs.find(|sign| self.rest().starts_with(**sign)).copied();
                let sign = sign.ok_or_else(|| format!("line {line}: unexpected {char:?}"))?;
                if sign == "}" && depth > 0 && braces == 0 {
                    self.at += 1;
                    return Ok(tokens);
                }
                self.at += sign.len();
                braces += usize::from(sign == "{");
                braces = braces.saturating_sub(usize::from(sign == "}"));
                Lexeme::Sign(sign)
            };
            tokens.push(Token { line, is_first, of });
        }
    }

    fn unclosed(&self, line: usize, what: &str) -> String {
        format!("line {line}: {what} is not closed")
    }

    /// Skips blanks and comments.
    fn blanks(&mut self) -> Result<(), String> {
        loop {
            let (rest, line) = (self.rest(), self.line);
            if rest.starts_with("//") || (self.at == 0 && rest.starts_with("#!")) {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                let end = rest.find("*/").ok_or_else(|| self.unclosed(line, "/*"))? + 2;
                self.line += rest.get(..end).unwrap_or_default().matches('\n').count();
                self.at += end;
            } else if rest.starts_with(char::is_whitespace) {
                self.next_char();
            } else {
                return Ok(());
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let line = self.line;
        self.next_char();
        let mut text = String::new();
        loop {
            match self.next_char() {
                Some(char) if char == quote => return Ok(text),
                Some('\\') => self.escape(&mut text),
                None | Some('\n') => return Err(self.unclosed(line, &quote.to_string())),
                Some(char) => text.push(char),
            }
        }
    }

    fn escape(&mut self, text: &mut String) {
        let Some(char) = self.next_char() else { return };
        let mut hex = |lexer: &mut Self, digits: usize| {
            let code = lexer.rest().get(..digits).and_then(|d| u32::from_str_radix(d, 16).ok());
            if let Some(char) = code.and_then(char::from_u32) {
                lexer.at += digits;
                text.push(char);
            }
        };
        match char {
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            'x' => hex(self, 2),
            'u' => hex(self, 4),
            '\n' => {}
            other => text.push(other),
        }
    }

    fn template(&mut self, depth: usize) -> Result<Vec<Piece>, String> {
        let line = self.line;
        if depth >= NESTING_MAX {
            return Err(format!("line {line}: templates are nested too deep"));
        }
        self.next_char();
        let (mut pieces, mut text) = (Vec::new(), String::new());
        loop {
            match self.next_char() {
                Some('`') => {
                    pieces.push(Piece::Text(text));
                    return Ok(pieces);
                }
                Some('\\') => self.escape(&mut text),
                Some('$') if self.rest().starts_with('{') => {
                    self.at += 1;
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                    pieces.push(Piece::Tokens(self.tokens(depth + 1)?));
                }
                Some(char) => text.push(char),
                None => return Err(self.unclosed(line, "`")),
            }
        }
    }

    fn pattern(&mut self) -> Result<(), String> {
        let line = self.line;
        self.next_char();
        let mut in_class = false;
        loop {
            match self.next_char() {
                Some('/') if !in_class => break,
                Some('\\') => drop(self.next_char()),
                Some('[') => in_class = true,
                Some(']') => in_class = false,
                None | Some('\n') => return Err(self.unclosed(line, "/")),
                Some(_) => {}
            }
        }
        while self.rest().starts_with(|c: char| c.is_ascii_alphabetic()) {
            self.next_char();
        }
        Ok(())
    }
}

/// Whether a `/` after this token begins a regular expression and is not a division.
fn is_pattern_next(before: Option<&Token>) -> bool {
    match before.map(|token| &token.of) {
        None => true,
        Some(Lexeme::Sign(sign)) => !matches!(*sign, ")" | "]" | "}"),
        Some(Lexeme::Name(name)) => name == "return",
        Some(_) => false,
    }
}
