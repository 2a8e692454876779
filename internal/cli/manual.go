package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/version"
)

// newManualCommand returns the verb that writes the text of --help as pages, for packages and
// for a site.
func newManualCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:    "manual DIR",
		Short:  "Write a manual page of each verb into DIR",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			write, suffix := manPage, ".1"
			switch format {
			case "man":
			case "markdown":
				write, suffix = markdownPage, ".md"
			default:
				return fmt.Errorf("--format %s: want man or markdown", format)
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			commands := manualCommands(cmd.Root())
			if format == "markdown" {
				if err := os.WriteFile(filepath.Join(args[0], "index.md"), markdownIndex(commands), 0o644); err != nil {
					return err
				}
			}
			for _, c := range commands {
				name := filepath.Join(args[0], strings.ReplaceAll(c.CommandPath(), " ", "-")+suffix)
				if err := os.WriteFile(name, write(c), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&format, "format", "man", "man or markdown")
	return cmd
}

// manualCommands returns cmd and the commands below it, except hidden ones and those that cobra
// adds.
func manualCommands(cmd *cobra.Command) []*cobra.Command {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return nil
	}
	list := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		list = append(list, manualCommands(sub)...)
	}
	return list
}

// help returns the description and the usage of a command.
func help(cmd *cobra.Command) (description, usage string) {
	description = cmd.Long
	if description == "" {
		description = cmd.Short
	}
	var out bytes.Buffer
	stdout := cmd.OutOrStdout()
	cmd.SetOut(&out)
	cmd.InitDefaultHelpFlag()
	_ = cmd.Usage() // writes to memory, which does not fail
	cmd.SetOut(stdout)
	return description, strings.TrimSpace(out.String())
}

// manPage returns the page of a command in man macros.
func manPage(cmd *cobra.Command) []byte {
	description, usage := help(cmd)
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %q 1 %q %q %q\n", strings.ToUpper(name), "", "weir "+version.Number, "weir")
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n.nf\n%s\n.fi\n", roff(description))
	fmt.Fprintf(&b, ".SH USAGE\n.nf\n%s\n.fi\n", roff(usage))
	fmt.Fprintf(&b, ".SH EXIT STATUS\n0 fine, 1 failed, 2 usage, 3 a check fell short.\n")
	return b.Bytes()
}

// roff escapes text for the man macros.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// markdownIndex returns the index page of the commands, with what they all share.
func markdownIndex(commands []*cobra.Command) []byte {
	var b bytes.Buffer
	b.WriteString("# Reference\n\nWritten by `weir manual DIR --format markdown`: what `--help` of each command says.\n\n")
	b.WriteString("| command | what it does |\n| --- | --- |\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "| [%s](%s.md) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), c.Short)
	}
	b.WriteString("\n## Exit codes\n\n| code | meaning |\n| --- | --- |\n")
	for code, meaning := range []string{
		ExitFine:      "fine",
		ExitFailed:    "failed; standard error says at what and why",
		ExitUsage:     "usage: the command line or the configuration makes no sense",
		ExitShortfall: "all ran, and a check fell short: a gate, a verification, a limit of `status`",
	} {
		fmt.Fprintf(&b, "| %d | %s |\n", code, meaning)
	}
	b.WriteString("\n## Beside the commands\n\n")
	b.WriteString("[What `--json` prints](json.md), [errors](errors.md), [hints](hints.md), [metrics](metrics.md), [tables of the console](console.md).\n")
	return b.Bytes()
}

// markdownPage returns the page of a command as Markdown.
func markdownPage(cmd *cobra.Command) []byte {
	description, usage := help(cmd)
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n%s\n\n```\n%s\n```\n", cmd.CommandPath(), description, usage)
	return b.Bytes()
}
