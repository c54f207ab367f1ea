//! Tokens to statements.

use super::lex::{Lexeme, Lexer, Piece, Token};
use super::{Expr, Kind, Statement, Value};

/// How deep expressions and functions nest.
const NESTING_MAX: usize = 64;
/// The operators, calls and members of one expression in a row.
const CHAIN_MAX: usize = 500;

/// Parses a script.
///
/// # Errors
/// What cannot even be split into tokens, with its line.
pub(in crate::commands::load::convert) fn parse(text: &str) -> Result<Vec<Statement>, String> {
    let tokens = Lexer::new(text).tokens(0)?;
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0 };
    Ok(parser.statements(true))
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Lexeme> {
        self.tokens.get(self.at).map(|token| &token.of)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Lexeme::Sign(one)) if *one == sign)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Lexeme::Name(name)) if name == word)
    }

    fn sign(&mut self, sign: &str) -> Option<()> {
        self.is_sign(sign).then(|| self.at += 1)
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.is_word(word).then(|| self.at += 1)
    }

    fn name(&mut self) -> Option<String> {
        let Some(Lexeme::Name(name)) = self.peek() else { return None };
        let name = name.clone();
        self.at += 1;
        Some(name)
    }

    /// Reads statements up to the end, or to the brace that closes a block.
    fn statements(&mut self, is_top: bool) -> Vec<Statement> {
        let mut statements = Vec::new();
        while self.peek().is_some() {
            if self.is_sign("}") && !is_top {
                break;
            }
            if self.sign(";").is_some() {
                continue;
            }
            let (begin, line) = (self.at, self.line());
            let of = self.statement().filter(|_| self.is_end()).unwrap_or_else(|| {
                self.at = begin;
                self.skip();
                Kind::Unknown(self.words(begin))
            });
            statements.push(Statement { line, of });
            // Whatever happens, it moves on.
            self.at = self.at.max(begin + 1);
        }
        statements
    }

    /// Whether a statement may end here.
    fn is_end(&self) -> bool {
        let Some(token) = self.tokens.get(self.at) else { return true };
        token.is_first || self.is_sign(";") || self.is_sign("}")
    }

    /// The first words of a statement, for a note.
    fn words(&self, begin: usize) -> String {
        let tokens = self.tokens.get(begin..self.at).unwrap_or_default().iter().take(8);
        let mut words = String::new();
        for token in tokens {
            let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '\'' | '"');
            let text = match &token.of {
                Lexeme::Name(name) => name.clone(),
                Lexeme::Number(number) => number.to_string(),
                Lexeme::Text(text) => format!("{text:?}"),
                Lexeme::Template(_) => "`…`".to_owned(),
                Lexeme::Pattern => "/…/".to_owned(),
                Lexeme::Sign(sign) => (*sign).to_owned(),
            };
            if words.ends_with(is_word) && text.starts_with(is_word) {
                words.push(' ');
            }
            words += &text;
        }
        words.chars().take(60).collect()
    }

    /// Skips a statement that is not understood: to its end, with all blocks that belong to it.
    fn skip(&mut self) {
        const WITH_BODIES: [&str; 9] =
            ["if", "for", "while", "do", "try", "switch", "function", "async", "class"];
        let is_prefix = |token: &&Token| match &token.of {
            Lexeme::Name(name) => name == "export" || name == "default",
            _ => false,
        };
        let mut words = self.tokens.get(self.at..).unwrap_or_default().iter().skip_while(is_prefix);
        let has_body = words.next().is_some_and(|token| match &token.of {
            Lexeme::Name(name) => WITH_BODIES.contains(&name.as_str()),
            _ => false,
        });
        let (mut depth, begin) = (0_usize, self.at);
        // Where the condition ends.
        let mut head_end = None;
        while let Some(token) = self.tokens.get(self.at) {
            let before = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
            match &token.of {
                Lexeme::Sign(";" | "}") if depth == 0 && self.at > begin => return,
                Lexeme::Sign("(" | "[" | "{") => depth += 1,
                Lexeme::Sign(sign @ (")" | "]" | "}")) => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && *sign == ")" {
                        head_end = head_end.or(Some(self.at));
                    }
                }
                Lexeme::Sign(_) => {}
                _ if depth == 0 && self.at > begin && token.is_first => {
                    let is_closed = before.is_some_and(|token| token.of == Lexeme::Sign("}"));
                    let goes_on =
                        ["else", "catch", "finally"].iter().any(|word| self.is_word(word))
                            || is_closed && self.is_word("while");
                    let has_begun = head_end.is_some_and(|head_end| self.at > head_end + 1);
                    if !goes_on && (!has_body || is_closed || has_begun) {
                        return;
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn statement(&mut self) -> Option<Kind> {
        if self.is_word("import") {
            self.at += 1;
            while self.peek().is_some() && !matches!(self.peek(), Some(Lexeme::Text(_))) {
                self.at += 1;
            }
            self.at += 1;
            return Some(Kind::Import);
        }
        if self.word("export").is_some() && self.word("default").is_some() {
            return Some(Kind::Default(self.expression()?));
        }
        if self.word("return").is_some() {
            let line = self.line();
            let nothing = self.is_end();
            let value = if nothing { Expr { line, of: Value::Null } } else { self.expression()? };
            return Some(Kind::Return(value));
        }
        if ["const", "let", "var"].iter().any(|word| self.word(word).is_some()) {
            let name = self.name()?;
            self.sign("=")?;
            return Some(Kind::Declare(name, self.expression()?));
        }
        if self.is_word("function") {
            let named = self.tokens.get(self.at + 1).map(|token| token.of.clone());
            let Some(Lexeme::Name(name)) = named else { return None };
            return Some(Kind::Declare(name, self.expression()?));
        }
        self.expression().map(Kind::Do)
    }

    fn expression(&mut self) -> Option<Expr> {
        self.depth += 1;
        let expr = (self.depth <= NESTING_MAX).then(|| self.binary(0)).flatten();
        self.depth -= 1;
        expr
    }

    fn binary(&mut self, least: usize) -> Option<Expr> {
        const LEVELS: [&[&str]; 6] = [
            &["||", "??"],
            &["&&"],
            &["===", "!==", "==", "!="],
            &["<", ">", "<=", ">="],
            &["+", "-"],
            &["*", "/", "%"],
        ];
        let Some(signs) = LEVELS.get(least) else { return self.postfix() };
        let mut left = self.binary(least + 1)?;
        for _ in 0..CHAIN_MAX {
            let Some(Lexeme::Sign(sign)) = self.peek() else { return Some(left) };
            let Some(sign) = signs.iter().find(|one| *one == sign) else { return Some(left) };
            self.at += 1;
            let right = self.binary(least + 1)?;
            let line = left.line;
            let of = Value::Binary((*sign).to_owned(), Box::new(left), Box::new(right));
            left = Expr { line, of };
        }
        None
    }

    fn postfix(&mut self) -> Option<Expr> {
        let mut expr = self.primary()?;
        for _ in 0..CHAIN_MAX {
            let line = expr.line;
            let of = if self.sign(".").is_some() || self.sign("?.").is_some() {
                Value::Member(Box::new(expr), self.name()?)
            } else if self.sign("[").is_some() {
                let index = self.expression()?;
                self.sign("]")?;
                let name = match index.of {
                    Value::Text(name) => name,
                    Value::Number(number) => number.to_string(),
                    _ => return None,
                };
                Value::Member(Box::new(expr), name)
            } else if self.is_sign("(") {
                self.at += 1;
                Value::Call(Box::new(expr), self.list(")")?)
            } else {
                return Some(expr);
            };
            expr = Expr { line, of };
        }
        None
    }

    /// Reads expressions with commas, up to a sign.
    fn list(&mut self, end: &str) -> Option<Vec<Expr>> {
        let mut list = Vec::new();
        while self.sign(end).is_none() {
            list.push(self.item(end)?);
            if self.sign(",").is_none() && !self.is_sign(end) {
                return None;
            }
        }
        Some(list)
    }

    /// Reads an element of a list up to a comma or the end; skips what is not understood.
    fn item(&mut self, end: &str) -> Option<Expr> {
        let (begin, line) = (self.at, self.line());
        let item = self.expression().filter(|_| self.is_sign(",") || self.is_sign(end));
        if item.is_some() {
            return item;
        }
        self.at = begin;
        while !self.is_sign(",") && !self.is_sign(end) {
            self.item_token()?;
        }
        Some(Expr { line, of: Value::Unknown })
    }

    fn primary(&mut self) -> Option<Expr> {
        let line = self.line();
        if let Some(function) = self.function() {
            return Some(Expr { line, of: function });
        }
        let of = match self.peek()?.clone() {
            Lexeme::Number(number) => Value::Number(number),
            Lexeme::Text(text) => Value::Text(text),
            Lexeme::Template(pieces) => Value::Template(self.pieces(&pieces, line)?),
            Lexeme::Name(name) => match name.as_str() {
                "true" => Value::True,
                "false" => Value::False,
                "null" | "undefined" => Value::Null,
                "new" | "await" | "typeof" | "function" | "async" | "class" | "if" | "for"
                | "while" | "do" | "try" | "switch" | "throw" => return None,
                _ => Value::Name(name),
            },
            Lexeme::Sign("(") => {
                self.at += 1;
                let inner = self.expression()?;
                self.sign(")")?;
                return Some(inner);
            }
            Lexeme::Sign("[") => {
                self.at += 1;
                return Some(Expr { line, of: Value::Array(self.list("]")?) });
            }
            Lexeme::Sign("{") => return Some(Expr { line, of: self.object()? }),
            Lexeme::Sign("-") => {
                self.at += 1;
                let Some(Lexeme::Number(number)) = self.peek() else { return None };
                Value::Number(-number)
            }
            _ => return None,
        };
        self.at += 1;
        Some(Expr { line, of })
    }

    fn pieces(&self, pieces: &[Piece], line: usize) -> Option<Vec<Expr>> {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => Some(Expr { line, of: Value::Text(text.clone()) }),
            Piece::Tokens(tokens) => {
                let mut parser = Parser { tokens, at: 0, depth: self.depth };
                let expr = parser.expression()?;
                parser.peek().is_none().then_some(expr)
            }
        };
        pieces.iter().map(piece).collect()
    }

    fn object(&mut self) -> Option<Value> {
        self.sign("{")?;
        let mut pairs = Vec::new();
        while self.sign("}").is_none() {
            let line = self.line();
            let begin = self.at;
            let key = match self.peek()?.clone() {
                Lexeme::Name(key) | Lexeme::Text(key) => key,
                Lexeme::Number(key) => key.to_string(),
                _ => "…".to_owned(),
            };
            self.at += 1;
            let value = if self.sign(":").is_some() {
                self.item("}")?
            } else if key != "…" && (self.is_sign(",") || self.is_sign("}")) {
                Expr { line, of: Value::Name(key.clone()) }
            } else {
                // A method, or what is spread into the object.
                self.at = begin;
                while !self.is_sign(",") && !self.is_sign("}") {
                    self.item_token()?;
                }
                Expr { line, of: Value::Unknown }
            };
            pairs.push((key, value));
            if self.sign(",").is_none() && !self.is_sign("}") {
                return None;
            }
        }
        Some(Value::Object(pairs))
    }

    /// Skips a token, with all to the bracket that closes it.
    fn item_token(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                Lexeme::Sign("(" | "[" | "{") => depth += 1,
                Lexeme::Sign(")" | "]" | "}") => depth = depth.checked_sub(1)?,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Reads a function or an arrow function, if there is one.
    fn function(&mut self) -> Option<Value> {
        let begin = self.at;
        let function = self.function_at();
        if function.is_none() {
            self.at = begin;
        }
        function
    }

    fn function_at(&mut self) -> Option<Value> {
        let is_arrow = self.word("function").is_none();
        if !is_arrow {
            self.name();
        }
        let parameters = match self.name().filter(|_| is_arrow) {
            Some(parameter) => vec![parameter],
            None => {
                self.sign("(")?;
                let mut parameters = Vec::new();
                while self.sign(")").is_none() {
                    parameters.push(self.name()?);
                    if self.sign(",").is_none() && !self.is_sign(")") {
                        return None;
                    }
                }
                parameters
            }
        };
        if is_arrow {
            self.sign("=>")?;
        }
        let line = self.line();
        if self.sign("{").is_none() {
            let of = Kind::Return(self.expression().filter(|_| is_arrow)?);
            return Some(Value::Function(parameters, vec![Statement { line, of }]));
        }
        self.depth += 1;
        let body = (self.depth <= NESTING_MAX).then(|| self.statements(false));
        self.depth -= 1;
        self.sign("}")?;
        Some(Value::Function(parameters, body?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(usize, Kind)> {
        parse(text).unwrap().into_iter().map(|statement| (statement.line, statement.of)).collect()
    }

    #[test]
    fn what_is_not_understood_is_skipped_as_a_whole() {
        let text = "import a from 'b';\nif (x) {\n  y(';')\n} else { z() }\na()\nfor (;;) b()\n\
                    c(/[)\\/]/g, 1)\nclass A { b() { c } }\nd(`x${ {a: '}'}.a }`)\nx++\nnew Trend('t')\n";
        let lines: Vec<(usize, bool)> = kinds(text)
            .into_iter()
            .map(|(line, kind)| (line, matches!(kind, Kind::Unknown(_))))
            .collect();
        let expected = [
            (1, false),
            (2, true),
            (5, false),
            (6, true),
            (7, false),
            (8, true),
            (9, false),
            (10, true),
            (11, true),
        ];
        assert_eq!(lines, expected, "{:?}", kinds(text));
    }

    #[test]
    fn statements_need_no_semicolons() {
        let text = "const a = {\n b: [1, -2.5],\n 'c d': `e${f}`,\n}\nexport default function () {\n\
                    check(a, { 'x': (r) => r.status === 200 && r.b\n.c('d') })\n}\n";
        let [(1, Kind::Declare(a, object)), (5, Kind::Default(default))] = &kinds(text)[..] else {
            panic!("{:?}", kinds(text));
        };
        assert_eq!(a, "a");
        assert!(matches!(&object.of, Value::Object(pairs) if pairs.len() == 2));
        assert!(matches!(&default.of, Value::Function(_, body) if body.len() == 1));
    }

    #[test]
    fn elements_that_are_not_understood_are_kept_as_unknown() {
        let text = "a({ ...b, c() { d }, 'e': !f, g: 1, h }, /i,/, (j) => k ? [1, 2] : 3, 4)";
        let [(1, Kind::Do(Expr { of: Value::Call(_, arguments), .. }))] = &kinds(text)[..] else {
            panic!("{:?}", kinds(text));
        };
        let Value::Object(pairs) = &arguments[0].of else { panic!("{arguments:?}") };
        let unknown: Vec<(&str, bool)> =
            pairs.iter().map(|(key, value)| (key.as_str(), value.of == Value::Unknown)).collect();
        assert_eq!(unknown, [("…", true), ("c", true), ("e", true), ("g", false), ("h", false)]);
        let unknown: Vec<bool> = arguments.iter().map(|one| one.of == Value::Unknown).collect();
        assert_eq!(unknown, [false, true, true, false]);
    }

    #[test]
    fn hostile_texts_end() {
        for text in ["'a", "`a${", "`a${b", "/* a", "/a", "\u{1}", "1e", "0x"] {
            let _ = parse(text);
        }
        for text in [
            "(",
            "{",
            "[",
            "=>",
            "a(",
            "}",
            "if",
            "export",
            "`${`${`${",
            "f(=>",
            "a.",
            "(a",
            "function",
            "1+",
            "a()",
            "a[0].",
        ] {
            let _ = parse(&text.repeat(20_000));
        }
        assert!(parse("'a").unwrap_err().contains("line 1"));
    }
}
