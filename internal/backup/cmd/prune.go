package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/archive"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/wal"
	"github.com/weirdb/weir/internal/cli"
)

// pruneVerb is the configuration of `weir backup prune`.
type pruneVerb struct {
	policy  archive.Policy
	within  string
	orphans time.Duration
	keepLog bool
	dryRun  bool
	json    cli.JSON[pruneReport]
}

// pruneReport is the output of `weir backup prune --json`.
type pruneReport struct {
	DryRun   bool               `json:"dry_run,omitempty"` // nothing was removed
	Plan     []archive.Decision `json:"plan"`              // each backup, and whether it stays
	Removed  []string           `json:"removed,omitempty"` // backups that were removed
	Orphans  []string           `json:"orphans,omitempty"` // unfinished backups that were removed
	Segments int                `json:"log_files"`         // removed, or to be removed
}

func newPruneCommand() *cobra.Command {
	var v pruneVerb
	cmd := &cobra.Command{
		Use:   "prune PLACE",
		Short: "Remove old backups by rules",
		Long: `Remove the backups that no rule keeps, and the archived log that no remaining
backup needs. Rules count from the newest backup, separately for each server and label;
a backup that any rule keeps is kept. Regardless of the rules, prune keeps the newest
complete backup of each server and label, and backups that others need.

Unfinished backups stay until they have made no progress for --remove-unfinished.
Damaged backups are never removed; the exit code is then 3.`,
		Example: `  weir backup prune /backups --keep-last 3 --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --dry-run
  weir backup prune /backups --keep-within 30d`,
		Args:    cobra.ExactArgs(1),
		PreRunE: func(*cobra.Command, []string) error { return v.complete() },
		RunE: func(cmd *cobra.Command, args []string) error {
			return v.run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.IntVar(&v.policy.Last, "keep-last", 0, "keep the newest N")
	f.IntVar(&v.policy.Daily, "keep-daily", 0, "keep the newest of each of N days")
	f.IntVar(&v.policy.Weekly, "keep-weekly", 0, "keep the newest of each of N weeks")
	f.IntVar(&v.policy.Monthly, "keep-monthly", 0, "keep the newest of each of N months")
	f.IntVar(&v.policy.Yearly, "keep-yearly", 0, "keep the newest of each of N years")
	f.StringVar(&v.within, "keep-within", "", "keep all that are younger than this, such as 36h or 30d")
	f.DurationVar(&v.orphans, "remove-unfinished", 7*24*time.Hour, "remove unfinished backups without progress for this long; none keeps them")
	cli.OrNone(f, "remove-unfinished", "-1ns")
	f.BoolVar(&v.keepLog, "keep-log", false, "remove no archived log")
	f.BoolVar(&v.dryRun, "dry-run", false, "print what would be removed, and remove nothing")
	v.json.Flag(cmd.Flags(), "print JSON")
	return cmd
}

func (v *pruneVerb) complete() error {
	p := &v.policy
	if p.Last < 0 || p.Daily < 0 || p.Weekly < 0 || p.Monthly < 0 || p.Yearly < 0 {
		return errors.New("--keep-...: numbers are not negative")
	}
	if v.within != "" {
		text, unit := v.within, time.Duration(1)
		if days, ok := strings.CutSuffix(text, "d"); ok {
			text, unit = days+"h", 24
		}
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 || d > math.MaxInt64/unit { // an overflow would keep nothing
			return fmt.Errorf("--keep-within %q: want a time such as 36h or 30d", v.within)
		}
		p.Within = d * unit
	}
	if p.Last+p.Daily+p.Weekly+p.Monthly+p.Yearly == 0 && p.Within == 0 {
		return errors.New("no rule: --keep-last, --keep-daily, --keep-weekly, --keep-monthly, --keep-yearly or --keep-within says what to keep")
	}
	return nil
}

func (v *pruneVerb) run(ctx context.Context, place string, stdout io.Writer) error {
	repo, err := archive.OpenExisting(ctx, place)
	if err != nil {
		return err
	}
	now := time.Now()
	entries, err := archive.List(ctx, repo, now)
	if err != nil {
		return err
	}
	report := pruneReport{DryRun: v.dryRun, Plan: archive.Plan(entries, v.policy, now)}
	if !v.dryRun {
		if report.Removed, err = archive.Prune(ctx, repo, report.Plan); err != nil {
			return err
		}
		if v.orphans >= 0 {
			if report.Orphans, err = archive.RemoveOrphans(ctx, repo, v.orphans, now); err != nil {
				return err
			}
		}
	}
	if !v.keepLog {
		if report.Segments, err = v.log(ctx, repo, report.Plan); err != nil {
			return err
		}
	}
	if err := v.print(report, stdout); err != nil {
		return err
	}
	for _, e := range entries {
		if e.State == archive.Damaged {
			return cli.Shortfall(fmt.Errorf("backup %s is damaged: %s; weir backup verify says more; prune does not remove it", e.ID, e.Reason))
		}
	}
	return nil
}

// log removes the log that the remaining backups do not need. A backup that cannot be read may
// need any log, so nothing is removed then. A binary log beside an unfinished backup, which may
// be resumed, is also kept.
func (v *pruneVerb) log(ctx context.Context, repo *archive.Repository, plan []archive.Decision) (int, error) {
	var bases []archive.Entry
	var stay []archive.Summary
	unfinished := false
	for _, d := range plan {
		switch {
		case d.Entry.State == archive.Running, d.Entry.State == archive.Damaged:
			return 0, nil
		case d.Entry.State == archive.Incomplete:
			unfinished = true
		case d.Keep && d.Entry.State == archive.Complete && d.Entry.Summary.Scope == scopeBase:
			bases = append(bases, d.Entry)
		case d.Keep:
			stay = append(stay, d.Entry.Summary)
		}
	}
	n, err := wal.Prune(ctx, repo, bases, v.dryRun)
	if err != nil || unfinished {
		return n, err
	}
	more, err := dumpmy.PruneLogs(ctx, repo.Storage(), stay, v.dryRun)
	return n + more, err
}

func (v *pruneVerb) print(r pruneReport, w io.Writer) error {
	if v.json.Given() {
		return v.json.Print(w, r)
	}
	for _, d := range r.Plan {
		verdict := "keep"
		if !d.Keep {
			verdict = "remove"
		}
		fmt.Fprintf(w, "%-7s %s  %s\n", verdict, d.Entry.ID, strings.Join(d.Reasons, ", "))
	}
	for _, id := range r.Orphans {
		fmt.Fprintf(w, "%-7s %s  unfinished, without progress\n", "remove", id)
	}
	verb := "removed"
	if r.DryRun {
		verb = "would remove"
	}
	n := len(r.Removed)
	if r.DryRun {
		for _, d := range r.Plan {
			if !d.Keep {
				n++
			}
		}
	}
	_, err := fmt.Fprintf(w, "%s %d backups, %d unfinished ones, %d files of log\n", verb, n, len(r.Orphans), r.Segments)
	return err
}
