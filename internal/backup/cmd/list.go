package backupcmd

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/archive"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/wal"
	"github.com/weirdb/weir/internal/cli"
)

// catalogue is the output of `weir backup list --json`.
type catalogue struct {
	Location string          `json:"location"` // where the archive is
	Backups  []archive.Entry `json:"backups"`  // the newest last
	// Logs are the archived logs of clusters.
	Logs []wal.Range `json:"logs,omitempty"`
	// Binlogs are the archived binary logs of servers.
	Binlogs []dumpmy.Log `json:"binlogs,omitempty"`
}

func newListCommand() *cobra.Command {
	var asJSON cli.JSON[catalogue]
	cmd := &cobra.Command{
		Use:   "list PLACE",
		Short: "List the backups in a place, and the log that is archived there",
		Long: `List the backups of a directory or S3 location, oldest first, with their state:
complete, running, incomplete (--resume continues it) or damaged. If there are backups
of several servers, each names its server.

Ranges of archived log follow. A gap between two ranges of one timeline means that log
is missing: no backup before the gap can be replayed past it. For binary logs only the
beginning and the end are shown; weir backup verify --log finds gaps.`,
		Example: `  weir backup list /backups
  weir backup list 's3://backups/db?region=eu-central-1' --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			repo, err := archive.OpenExisting(ctx, args[0])
			if err != nil {
				return err
			}
			c := catalogue{Location: repo.String(), Backups: []archive.Entry{}}
			entries, err := archive.List(ctx, repo, time.Now())
			if err != nil {
				return err
			}
			c.Backups = append(c.Backups, entries...)
			if c.Logs, err = wal.Ranges(ctx, repo.Storage()); err != nil {
				return err
			}
			if c.Binlogs, err = dumpmy.Logs(ctx, repo.Storage()); err != nil {
				return err
			}
			if asJSON.Given() {
				return asJSON.Print(cmd.OutOrStdout(), c)
			}
			return printCatalogue(cmd.OutOrStdout(), c)
		},
	}
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

func printCatalogue(w io.Writer, c catalogue) error {
	if len(c.Backups) == 0 && len(c.Logs)+len(c.Binlogs) == 0 {
		_, err := fmt.Fprintf(w, "%s holds no backups\n", c.Location)
		return err
	}
	width := len("backup")
	servers := map[string]bool{}
	for _, e := range c.Backups {
		width = max(width, len(e.ID))
		if e.State == archive.Complete {
			servers[e.Summary.Server.SystemID] = true
		}
	}
	if len(c.Backups) > 0 {
		fmt.Fprintf(w, "%-*s  %-10s  %-20s  %8s  %6s  %s\n", width, "backup", "state", "started", "stored", "tables", "what")
	}
	for _, e := range c.Backups {
		what, tables := e.Reason, ""
		if e.State == archive.Complete {
			s := e.Summary
			what = fmt.Sprintf("%s of %s %s", s.Scope, s.Engine, s.Server.Version)
			if s.Partial {
				what += ", partial"
			}
			if s.Encryption != nil {
				what += ", encrypted"
			}
			if len(servers) > 1 {
				what += ", server " + s.Server.SystemID
			}
			tables = fmt.Sprint(s.Totals.Tables)
		}
		fmt.Fprintf(w, "%-*s  %-10s  %-20s  %8s  %6s  %s\n", width, e.ID, e.State, e.Time.UTC().Format(time.RFC3339), cli.ByteText(e.Bytes), tables, what)
	}
	for _, r := range c.Logs {
		if _, err := fmt.Fprintln(w, "log "+r.String()); err != nil {
			return fmt.Errorf("print catalogue: %w", err)
		}
	}
	for _, l := range c.Binlogs {
		if _, err := fmt.Fprintln(w, l); err != nil {
			return fmt.Errorf("print catalogue: %w", err)
		}
	}
	return nil
}
