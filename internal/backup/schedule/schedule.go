// Package schedule generates systemd units, and a crontab line, that run backups regularly.
package schedule

import (
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Units are a systemd service and its timer.
type Units struct {
	Name       string
	OnCalendar string // when, as in systemd.time(7)
	Delay      string // the starts of many machines are spread over this time
	User       string
	// EnvFile is the path of a file with secrets, as lines NAME=VALUE. Default: none.
	EnvFile string
	// Commands run one after another, until one fails. Words are not quoted.
	Commands [][]string
}

// Write writes the units, with a crontab line in a comment.
func (u *Units) Write(w io.Writer) error {
	var lines, shells []string
	for _, c := range u.Commands {
		lines, shells = append(lines, unitLine(c)), append(shells, ShellLine(c))
	}
	shell := strings.Join(shells, " && ")
	if u.EnvFile != "" {
		// A shell cannot source the file: in its lines NAME=VALUE, values are not quoted,
		// because systemd takes the rest of a line literally.
		file := ShellLine([]string{u.EnvFile})
		shell = "if [ -r " + file + " ]; then while IFS= read -r line; do case \"$line\" in [A-Za-z_]*=*) export \"$line\";; esac; done < " + file + "; fi; " + shell
	}
	_, err := fmt.Fprintf(w, units, u.Name, strings.Join(lines, "\nExecStart="), u.EnvFile, u.User, u.OnCalendar, u.Delay, strings.ReplaceAll(shell, "%", `\%`))
	if err != nil {
		return fmt.Errorf("print units: %w", err)
	}
	return nil
}

const units = `# /etc/systemd/system/%[1]s.service
[Unit]
Description=weir backup
Documentation=https://github.com/weirdb/weir/blob/main/docs/backup.md
After=network-online.target
Wants=network-online.target

[Service]
Type=oneshot
ExecStart=%[2]s
EnvironmentFile=-%[3]s
User=%[4]s
# The first signal ends a backup in an orderly way.
KillSignal=SIGTERM
TimeoutStopSec=60s
Nice=10
IOSchedulingClass=idle
NoNewPrivileges=yes
ProtectHome=read-only
PrivateTmp=yes
UMask=0077

# /etc/systemd/system/%[1]s.timer
[Unit]
Description=weir backup, regularly

[Timer]
OnCalendar=%[5]s
RandomizedDelaySec=%[6]s
# A run that was missed while the machine was off is made up for.
Persistent=true

[Install]
WantedBy=timers.target

# systemctl daemon-reload && systemctl enable --now %[1]s.timer
#
# Or, in place of both, in /etc/crontab, at a time of its own:
# 30 2 * * * %[4]s  %[7]s
`

// passwordWord matches a password among key-value pairs or a URL's parameters.
var passwordWord = regexp.MustCompile(`(?i)(^|[\s?&])(ssl)?password\s*=`)

// HoldsPassword reports whether an argument, or the value of a flag, contains a password.
func HoldsPassword(arg string) bool {
	if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(flag, "--") {
		arg = value
	}
	if u, err := url.Parse(arg); err == nil && u.User != nil {
		if _, secret := u.User.Password(); secret {
			return true
		}
	}
	return passwordWord.MatchString(arg)
}

// unitLine quotes a command line for systemd, in which "%" and "$" are special.
func unitLine(args []string) string {
	var words []string
	for _, a := range args {
		a = strings.NewReplacer("%", "%%", "$", "$$").Replace(a)
		if strings.ContainsAny(a, " \t\"'\\;") || a == "" {
			a = strconv.Quote(a)
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// plainWord matches words that need no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// ShellLine quotes a command line for a shell.
func ShellLine(args []string) string {
	var words []string
	for _, a := range args {
		if !plainWord.MatchString(a) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
