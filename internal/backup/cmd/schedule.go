package backupcmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/schedule"
)

// scheduleVerb is the configuration of `weir backup schedule`.
type scheduleVerb struct {
	name       string
	onCalendar string
	user       string
	delay      string
	envFile    string
	program    string
	prune      []string
}

func newScheduleCommand() *cobra.Command {
	var v scheduleVerb
	cmd := &cobra.Command{
		Use:   "schedule [flags] -- [base|binlog] DSN --to PLACE [flags of weir backup]",
		Short: "Print systemd units, and a line of crontab, for regular backups",
		Long: `Print a systemd service and timer that run weir backup with the arguments after --,
followed by weir backup prune if --keep is given, and the same as a crontab line.
Nothing is installed. Relative paths are made absolute. Each run of binlog archives up
to the current end of the log; weir backup wal runs all the time, and contrib/systemd
has a unit for it.

Secrets do not belong in units: put PGPASSWORD and the credentials of S3 into the file
of --env-file, which systemd reads as root. The crontab line reads it, too.`,
		Example: `  weir backup schedule --on-calendar 'hourly' -- binlog mysql://backup@db/ --to /backups
  weir backup schedule --on-calendar '*-*-* 02:30' --keep last=3,daily=7 -- postgres://backup@db/shop --to /backups`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() != 0 {
				return errors.New("the arguments of weir backup follow after --")
			}
			return v.complete(args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := v.whole(args)
			if err != nil {
				return err
			}
			return v.print(args, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&v.name, "name", "weir-backup", "name of the units")
	f.StringVar(&v.onCalendar, "on-calendar", "*-*-* 02:30", "when to run, as in systemd.time(7)")
	f.StringVar(&v.delay, "random-delay", "5m", "spread the starts of many machines over this time")
	f.StringVar(&v.user, "user", "weir", "user to run as")
	f.StringVar(&v.envFile, "env-file", "/etc/weir/backup.env", "file with secrets, as NAME=VALUE")
	f.StringVar(&v.program, "program", "", "path of weir (default this program)")
	f.StringSliceVar(&v.prune, "keep", nil, "prune afterwards by rules such as last=3,daily=7,weekly=4,monthly=12,within=30d")
	return cmd
}

var (
	unitName = regexp.MustCompile(`^[A-Za-z0-9:_.@-]+$`)
	keepRule = regexp.MustCompile(`^(last|daily|weekly|monthly|yearly)=[0-9]+$|^within=[0-9]+[a-z0-9]+$`)
)

// complete validates the flags, and the arguments as weir backup would.
func (v *scheduleVerb) complete(args []string) error {
	if v.program == "" {
		path, err := os.Executable()
		if err != nil {
			return fmt.Errorf("--program: %w", err)
		}
		v.program = path
	}
	switch {
	case !unitName.MatchString(v.name):
		return fmt.Errorf("--name %q: not a valid unit name", v.name)
	case strings.ContainsAny(v.onCalendar+v.user+v.envFile+v.delay, "\r\n") || v.onCalendar == "" || v.user == "":
		return errors.New("--on-calendar, --user, --env-file, --random-delay: one line each, and the first two not empty")
	case !filepath.IsAbs(v.program):
		return fmt.Errorf("--program %q: systemd needs an absolute path", v.program)
	}
	for _, rule := range v.prune {
		if !keepRule.MatchString(rule) {
			return fmt.Errorf("--keep %q: want last=N, daily=N, weekly=N, monthly=N, yearly=N or within=30d", rule)
		}
	}
	for _, a := range args {
		if strings.ContainsAny(a, "\r\n\x00") {
			return errors.New("the arguments of weir backup: one line each")
		}
		if schedule.HoldsPassword(a) {
			return errors.New("an argument of weir backup holds a password, which any user could read in the unit: put PGPASSWORD, MYSQL_PWD or the credentials of S3 into the file of --env-file")
		}
	}
	backup, rest, err := scheduled(args)
	if err != nil {
		return err
	}
	if err := backup.ValidateArgs(rest); err != nil {
		return fmt.Errorf("weir %s: %w", backup.CommandPath(), err)
	}
	if err := backup.PreRunE(backup, rest); err != nil {
		return fmt.Errorf("weir %s: %w", backup.CommandPath(), err)
	}
	if to := backup.Flag("to").Value.String(); to == "-" {
		return errors.New("--to -: a service has no reader for standard output; give a directory or s3://BUCKET/PREFIX")
	}
	return nil
}

// scheduled returns the command of weir backup that args invoke, with its flags set, and its
// arguments.
func scheduled(args []string) (*cobra.Command, []string, error) {
	backup, rest, err := newBackupCommand().Find(args)
	if err != nil {
		return nil, nil, fmt.Errorf("weir backup: %w", err)
	}
	if name := backup.Name(); name != "backup" && name != "base" && name != "binlog" {
		return nil, nil, fmt.Errorf("weir backup %s does not end by itself: contrib/systemd has units for verbs that run all the time", name)
	}
	if err := backup.ParseFlags(rest); err != nil {
		return nil, nil, fmt.Errorf("weir %s: %w", backup.CommandPath(), err)
	}
	return backup, backup.Flags().Args(), nil
}

// pathFlags are flags of weir backup whose value is a file or directory.
var pathFlags = []string{
	"to", "encrypt-recipients-file", "encrypt-passphrase-file", "metrics-file", "temp-dir",
}

// whole makes the paths in args absolute: a unit and a crontab run in other directories.
func (v *scheduleVerb) whole(args []string) ([]string, error) {
	out := slices.Clone(args)
	for i, a := range out {
		name, value, ok := strings.Cut(a, "=")
		at := i
		if !ok && i+1 < len(out) {
			at, value = i+1, out[i+1]
		}
		if !strings.HasPrefix(name, "--") || !slices.Contains(pathFlags, name[2:]) || strings.Contains(value, "://") || value == "" {
			continue
		}
		path, err := filepath.Abs(value)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", name, value, err)
		}
		if at == i {
			path = name + "=" + path
		}
		out[at] = path
	}
	if backup, _, err := scheduled(args); err != nil || backup.Name() != "binlog" || slices.Contains(args, "--until-now") {
		return out, err
	}
	return append(out, "--until-now"), nil
}

// place returns where the backups are stored.
func (v *scheduleVerb) place(args []string) string {
	backup, _, err := scheduled(args)
	if err != nil {
		return "" // complete has rejected it
	}
	return backup.Flag("to").Value.String()
}

func (v *scheduleVerb) pruneArgs(place string) []string {
	args := []string{v.program, "backup", "prune", place}
	for _, rule := range v.prune {
		args = append(args, "--keep-"+rule)
	}
	return args
}

func (v *scheduleVerb) print(args []string, w io.Writer) error {
	backup := append([]string{v.program, "backup"}, args...)
	if c, _, err := scheduled(args); err == nil && c.Flag("progress") != nil {
		backup = append(backup, "--progress", "none")
	}
	u := schedule.Units{
		Name: v.name, OnCalendar: v.onCalendar, Delay: v.delay, User: v.user, EnvFile: v.envFile,
		Commands: [][]string{backup},
	}
	if len(v.prune) > 0 {
		u.Commands = append(u.Commands, v.pruneArgs(v.place(args)))
	}
	return u.Write(w)
}
