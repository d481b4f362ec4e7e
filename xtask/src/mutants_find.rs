//! Finds the changes of a file: syn gives the expressions and where they stand, the change itself is
//! one of text.
//!
//! Invariant Z1 ([`crate::mutants`]) is held here: what the visitor does not enter is not changed.

use crate::mutants::{Kind, Mutation};
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, Lit, Signature, Stmt, UnOp};

/// Binary operators.
const OPERATORS: &[(&str, &str)] = &[
    ("<", "<="),
    ("<=", "<"),
    (">", ">="),
    (">=", ">"),
    ("==", "!="),
    ("!=", "=="),
    ("+", "-"),
    ("-", "+"),
    ("*", "/"),
    ("/", "*"),
    ("+=", "-="),
    ("-=", "+="),
    ("&&", "||"),
    ("||", "&&"),
    ("&", "|"),
    ("|", "&"),
];

/// Methods and functions that are called.
const CALLS: &[(&str, &str)] = &[
    ("min", "max"),
    ("max", "min"),
    ("is_some", "is_none"),
    ("is_none", "is_some"),
    ("any", "all"),
    ("all", "any"),
    ("round_up", "round_down"),
    ("round_down", "round_up"),
    ("first", "last"),
    ("saturating_sub", "saturating_add"),
];

/// What a function gives at once instead of running, by its type.
const EARLY: &[(&str, &[&str])] = &[
    ("", &["return;"]),
    ("bool", &["return true;", "return false;"]),
    ("u32", &["return 0;", "return 1;"]),
    ("u64", &["return 0;", "return 1;"]),
    ("usize", &["return 0;", "return 1;"]),
    ("Nanos", &["return 0;"]),
    ("Result<()>", &["return Ok(());"]),
    ("Option<", &["return None;"]),
];

/// The mutations of one file, in no order.
///
/// # Errors
/// A text that is not Rust.
pub fn of(file: &str, text: &str) -> Result<Vec<Mutation>, String> {
    let parsed = syn::parse_file(text).map_err(|e| format!("{file}: {e}"))?;
    let mut finder = Finder { file, text, inside: false, found: Vec::new() };
    finder.visit_file(&parsed);
    Ok(finder.found)
}

struct Finder<'a> {
    file: &'a str,
    text: &'a str,
    /// In the body of a function.
    inside: bool,
    found: Vec<Mutation>,
}

fn range(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

fn swap(table: &[(&str, &'static str)], old: &str) -> Option<&'static str> {
    table.iter().find(|(from, _)| *from == old).map(|(_, to)| *to)
}

/// Whether a thing is there for tests only, or in builds that are not run.
fn is_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let cfg = list.tokens.to_string();
            cfg.contains("test") || cfg == "shuttle"
        }
        meta => meta.path().is_ident("test"),
    })
}

/// A chain of conditions with a `let` in it is no value.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl Finder<'_> {
    fn add(&mut self, kind: Kind, node: Range<usize>, at: Range<usize>, new: &str) {
        let line = 1 + self.text[..at.start].matches('\n').count();
        let (file, new) = (self.file.to_string(), new.to_string());
        let old = self.text[at.clone()].to_string();
        self.found.push(Mutation { file, line, kind, node, at, old, new });
    }

    /// A change of a part of an expression.
    fn part(&mut self, node: &impl Spanned, part: &impl Spanned, new: &str) {
        self.add(Kind::Expression, range(node), range(part), new);
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, body: &Block) {
        if is_out(attributes) || signature.constness.is_some() || body.stmts.is_empty() {
            return;
        }
        let result = match &signature.output {
            syn::ReturnType::Default => "",
            syn::ReturnType::Type(_, kind) => &self.text[range(kind)],
        };
        let fits = |kind: &str| result == kind || kind.ends_with('<') && result.starts_with(kind);
        let start = range(&body.brace_token.span.open()).end;
        let early = EARLY.iter().filter(|(kind, _)| fits(kind)).flat_map(|(_, values)| *values);
        for value in early {
            self.add(Kind::First, start..start, start..start, value);
        }
        let outside = std::mem::replace(&mut self.inside, true);
        self.visit_block(body);
        self.inside = outside;
    }

    fn literal(&mut self, literal: &syn::ExprLit) {
        match &literal.lit {
            Lit::Bool(value) => {
                self.part(literal, literal, if value.value { "false" } else { "true" })
            }
            Lit::Int(value) => {
                if let Ok(number) = value.base10_parse::<u128>() {
                    self.part(literal, literal, &format!("{}{}", number + 1, value.suffix()));
                }
            }
            _ => {}
        }
    }

    fn binary(&mut self, binary: &syn::ExprBinary) {
        let logic = matches!(binary.op, BinOp::And(_) | BinOp::Or(_));
        if logic && (has_let(&binary.left) || has_let(&binary.right)) {
            return;
        }
        if let Some(new) = swap(OPERATORS, &self.text[range(&binary.op)]) {
            self.part(binary, &binary.op, new);
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_out(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_out(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.attrs, &item.sig, body);
        }
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = stmt {
            let called = if let Expr::Try(tried) = expr { &tried.expr } else { expr };
            if self.inside && matches!(called, Expr::Call(_) | Expr::MethodCall(_)) {
                self.add(Kind::Without, range(stmt), range(stmt), "");
            }
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        if !self.inside {
            return;
        }
        match expr {
            Expr::Binary(binary) => self.binary(binary),
            Expr::Lit(literal) => self.literal(literal),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => {
                self.part(unary, &unary.op, "")
            }
            Expr::MethodCall(call) => {
                if let Some(new) = swap(CALLS, &call.method.to_string()) {
                    self.part(call, &call.method, new);
                }
            }
            Expr::Call(call) => {
                let path = if let Expr::Path(path) = &*call.func {
                    path.path.segments.last()
                } else {
                    None
                };
                let name = path.map(|segment| &segment.ident);
                if let Some((name, new)) =
                    name.and_then(|n| Some((n, swap(CALLS, &n.to_string())?)))
                {
                    self.part(call, name, new);
                }
            }
            // The length is a constant.
            Expr::Repeat(repeat) => return self.visit_expr(&repeat.expr),
            Expr::Const(_) => return,
            _ => {}
        }
        visit::visit_expr(self, expr);
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "//! a < b\nconst X: u32 = 1;\nfn f(a: u32, b: &(dyn A + B)) -> bool {\n    \
        // x < y\n    let c = a < 7 && !g(a);\n    h.call(\"a + b\", a)?;\n    let d = || true;\n    \
        assert!(a == 3);\n    let e: [u8; 3] = [0; 4];\n    if let 5 | 6 = a && c { n::round_up(a) }\n    \
        x.y().min(\n        a,\n    )\n}\nconst fn k() { l(1); }\n#[cfg(all(test, not(shuttle)))]\n\
        mod tests {\n    fn t() {\n        x + 1;\n    }\n}\n";

    #[test]
    fn z1_only_code_outside_of_macros_patterns_constants_and_tests_is_changed() {
        let found = of("x.rs", SOURCE).unwrap();
        let shown: Vec<_> =
            found.iter().map(|m| (m.line, m.old.as_str(), m.new.as_str())).collect();
        let want = [
            (3, "", "return true;"),
            (3, "", "return false;"),
            (5, "&&", "||"),
            (5, "<", "<="),
            (5, "7", "8"),
            (5, "!", ""),
            (6, "h.call(\"a + b\", a)?;", ""),
            (7, "true", "false"),
            (9, "0", "1"),
            (10, "round_up", "round_down"),
            (11, "min", "max"),
        ];
        assert_eq!(shown, want);
        for mutation in &found {
            assert!(
                mutation.node.start <= mutation.at.start && mutation.at.end <= mutation.node.end
            );
        }
    }
}
