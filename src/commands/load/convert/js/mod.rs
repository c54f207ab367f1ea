//! A reader of the plain subset of JavaScript that load scripts are written in. Nothing is evaluated.
//! Statements that it does not understand are kept as [`Kind::Unknown`] with their line.

mod lex;
mod parse;

pub(in crate::commands::load::convert) use self::parse::parse;

/// An expression and the line where it begins.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Expr {
    pub(super) line: usize,
    pub(super) of: Value,
}

/// What an expression is.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Number(f64),
    Text(String),
    /// Literals and expressions in turn.
    Template(Vec<Expr>),
    True,
    False,
    Null,
    Array(Vec<Expr>),
    Object(Vec<(String, Expr)>),
    Name(String),
    Member(Box<Expr>, String),
    Call(Box<Expr>, Vec<Expr>),
    Binary(String, Box<Expr>, Box<Expr>),
    /// Parameters and statements; an expression alone is returned.
    Function(Vec<String>, Vec<Statement>),
    /// An element or argument that is not understood.
    Unknown,
}

/// A statement and its line.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Statement {
    pub(super) line: usize,
    pub(super) of: Kind,
}

/// What a statement is.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Kind {
    Import,
    /// A name and its value.
    Declare(String, Expr),
    /// `export default`.
    Default(Expr),
    Return(Expr),
    Do(Expr),
    /// The first words of a statement that is not understood.
    Unknown(String),
}
