//! Checks that no struct, function or module is larger, or more entangled, than a reader can hold.
//!
//! ```text
//!   struct     at most 20 fields
//!   function   at most 70 lines and 6 parameters, not counting self
//!   modules    those with the same parent use each other in no circle
//! ```
//! Every exception is listed where it stands, with a reason, in a comment of its own line, which must go when
//! it is no longer needed:
//!
//! ```text
//!   // structure: handle_segment: RFC 9293 gives the steps in this order
//!   // structure: cycle of calls, lock, state: one state, whose parts are not apart yet
//! ```

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ImplItemFn, ItemFn, ItemMod, ItemStruct, Signature, TraitItemFn, UseTree};

/// The most fields of a struct.
const FIELDS_MAX: usize = 20;
/// The most lines of a function, from its `fn` to its end.
const LINES_MAX: usize = 70;
/// The most parameters of a function.
const PARAMETERS_MAX: usize = 6;
/// The prefix of a comment that lists an exception.
const LISTED: &str = "// structure: ";

/// Returns what is too large in the product. `files` maps paths relative to the root to texts; tests are
/// skipped.
pub fn check(files: &BTreeMap<String, String>) -> Vec<String> {
    let mut violations = Vec::new();
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    for (path, text) in files {
        let Some((folder, module)) = product_module(path) else { continue };
        let file = match syn::parse_file(text) {
            Ok(file) => file,
            Err(error) => {
                violations.push(format!("{path}:{}: {error}", error.span().start().line));
                continue;
            }
        };
        let mut found = Found::default();
        found.visit_file(&file);
        let mut listed: BTreeMap<&str, usize> = (1..).zip(text.lines()).filter_map(listed_name).collect();
        for (name, line, what) in found.too_large {
            if listed.remove(name.as_str()).is_none() {
                violations.push(format!("{path}:{line}: `{name}` has {what}"));
            }
        }
        let modules = crates.entry(folder).or_default();
        listed.retain(|name, line| match name.strip_prefix("cycle of ") {
            Some(names) => {
                let names = names.split(", ").map(str::to_owned).collect();
                modules.listed.push(Listed { parent: module.clone(), names, at: format!("{path}:{line}") });
                false
            }
            None => true,
        });
        violations.extend(
            listed.iter().map(|(name, line)| format!("{path}:{line}: `{name}` need not be listed any more")),
        );
        modules.uses.insert(module, found.uses);
    }
    violations.extend(crates.iter().flat_map(|(folder, modules)| modules.check(folder)));
    violations
}

/// Returns the crate's folder and the path of the module, if the file is part of the product.
fn product_module(path: &str) -> Option<(&str, Vec<String>)> {
    let (folder, file) = path.split_once("/src/")?;
    let is_product = folder.starts_with("crates/") || folder.starts_with("bin/");
    let mut names: Vec<String> = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if !is_product || names.iter().any(|name| name == "tests" || name == "testing") {
        return None;
    }
    if names.last().is_some_and(|name| matches!(name.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    Some((folder, names))
}

/// Returns the name that a comment lists, and the line of the comment.
fn listed_name((line, text): (usize, &str)) -> Option<(&str, usize)> {
    let (name, reason) = text.trim_start().strip_prefix(LISTED)?.split_once(": ")?;
    (!reason.trim().is_empty()).then_some((name, line))
}

/// The findings in one file.
#[derive(Default)]
struct Found {
    /// The name and line of each item that is too large, and what it has too much of.
    too_large: Vec<(String, usize, String)>,
    /// The paths in use declarations that begin with `crate`, `super` or `self`.
    uses: BTreeSet<Vec<String>>,
}

impl Found {
    fn function(&mut self, signature: &Signature, end: usize) {
        let line = signature.fn_token.span().start().line;
        let is_self = |input: &&syn::FnArg| matches!(input, syn::FnArg::Receiver(_));
        let parameters = signature.inputs.len() - signature.inputs.iter().filter(is_self).count();
        let lines = end + 1 - line;
        let mut too_large = |what: String| self.too_large.push((signature.ident.to_string(), line, what));
        match (lines > LINES_MAX, parameters > PARAMETERS_MAX) {
            (true, _) => too_large(format!("{lines} lines")),
            (false, true) => too_large(format!("{parameters} parameters")),
            (false, false) => {}
        }
    }

    fn uses_of(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.uses_of(&path.tree, &with(&path.ident)),
            UseTree::Name(name) => self.note(with(&name.ident)),
            UseTree::Rename(rename) => self.note(with(&rename.ident)),
            UseTree::Glob(_) => self.note(before.to_vec()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.uses_of(tree, before)),
        }
    }

    fn note(&mut self, path: Vec<String>) {
        if matches!(path.first().map(String::as_str), Some("crate" | "super" | "self")) {
            self.uses.insert(path);
        }
    }
}

/// Returns whether an item is only compiled for tests.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let is_test = |list: &syn::MetaList| list.tokens.to_string() == "test";
    attributes.iter().any(|attribute| {
        attribute.meta.require_list().is_ok_and(|list| attribute.path().is_ident("cfg") && is_test(list))
    })
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        let fields = item.fields.len();
        if fields > FIELDS_MAX {
            let line = item.struct_token.span().start().line;
            self.too_large.push((item.ident.to_string(), line, format!("{fields} fields")));
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_for_tests(&item.attrs) {
            self.function(&item.sig, item.span().end().line);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.function(&item.sig, item.span().end().line);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.function(&item.sig, item.span().end().line);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.uses_of(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.note(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

/// The modules of a crate, each with the paths that it uses.
#[derive(Default)]
struct Modules {
    uses: BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
    listed: Vec<Listed>,
}

/// A cycle of modules that is listed as an exception.
struct Listed {
    parent: Vec<String>,
    names: BTreeSet<String>,
    at: String,
}

impl Modules {
    fn check(&self, folder: &str) -> Vec<String> {
        let mut violations = Vec::new();
        let mut needed: Vec<&str> = Vec::new();
        for (parent, arrows) in self.arrows() {
            for circle in circles(&arrows) {
                let listed =
                    self.listed.iter().find(|listed| listed.parent == parent && listed.names == circle);
                match listed {
                    Some(listed) => needed.push(&listed.at),
                    None => {
                        let names: Vec<&str> = circle.iter().map(String::as_str).collect();
                        let parent = if parent.is_empty() { "the crate".into() } else { parent.join("::") };
                        violations.push(format!(
                            "{folder}: modules of {parent} use each other: cycle of {}",
                            names.join(", ")
                        ));
                    }
                }
            }
        }
        let unneeded = self.listed.iter().filter(|listed| !needed.contains(&listed.at.as_str()));
        violations
            .extend(unneeded.map(|listed| format!("{}: this circle need not be listed any more", listed.at)));
        violations
    }

    /// Returns, for each parent, which of its children use which others, themselves or through their
    /// descendants.
    fn arrows(&self) -> BTreeMap<Vec<String>, BTreeMap<String, BTreeSet<String>>> {
        let mut arrows: BTreeMap<Vec<String>, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (module, uses) in &self.uses {
            for used in uses.iter().filter_map(|path| self.module_of(module, path)) {
                let common = module.iter().zip(&used).take_while(|(one, other)| one == other).count();
                if let (Some(from), Some(to)) = (module.get(common), used.get(common)) {
                    let of_parent = arrows.entry(module[..common].to_vec()).or_default();
                    of_parent.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
        arrows
    }

    /// Returns the module in which a path that is written in `module` ends.
    fn module_of(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut at = module.to_vec();
        for (place, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" if place == 0 => at.clear(),
                "self" if place == 0 => {}
                "super" => drop(at.pop()),
                _ => {
                    let next = [&at[..], std::slice::from_ref(name)].concat();
                    if !self.uses.contains_key(&next) {
                        break;
                    }
                    at = next;
                }
            }
        }
        self.uses.contains_key(&at).then_some(at)
    }
}

/// Returns the sets of names that reach each other.
fn circles(arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reached = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(name) = next.pop() {
            next.extend(arrows.get(name).into_iter().flatten().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        arrows.keys().map(|name| (name, reached(name))).collect();
    let mut all: Vec<BTreeSet<String>> = Vec::new();
    for (name, to) in &reached {
        let back = |other: &&String| reached.get(*other).is_some_and(|to| to.contains(*name));
        let circle: BTreeSet<String> = to.iter().filter(back).cloned().collect();
        if circle.len() > 1 && !all.contains(&circle) {
            all.push(circle);
        }
    }
    all
}
