//! `completions` and `man`.

use crate::failure::{Code, Failure};
use crate::help;
use crate::output::Out;

pub fn completions(shell: clap_complete::Shell) -> Result<Code, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut help::command(), "durix", &mut script);
    print(&script)
}

pub fn man() -> Result<Code, Failure> {
    let mut page = Vec::new();
    let mut command = help::command();
    command.build();
    let io = || Failure::io("rendering the manual page");
    clap_mangen::Man::new(command.clone()).render(&mut page).map_err(io())?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        let man = clap_mangen::Man::new(verb.clone());
        man.render_name_section(&mut page).map_err(io())?;
        man.render_synopsis_section(&mut page).map_err(io())?;
        man.render_options_section(&mut page).map_err(io())?;
    }
    print(&page)
}

fn print(bytes: &[u8]) -> Result<Code, Failure> {
    let mut out = Out::new();
    out.bytes(bytes)?;
    out.finish()?;
    Ok(Code::Done)
}
