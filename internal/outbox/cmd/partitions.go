package outboxcmd

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/outbox"
)

func newOutboxPartitions() *cobra.Command {
	v := &outboxVerb{}
	var maintain, strict bool
	var asJSON cli.JSON[partitionsReport]
	cmd := &cobra.Command{
		Use:   "partitions --db DSN",
		Short: "List the partitions of a history, or create and drop them",
		Long: `List the partitions of an outbox of layout history. --maintain first creates missing
partitions and drops expired ones, as a relay does every ten minutes. Rows in the
catch-all had no partition for their time; --maintain moves them.`,
		Example: `  weir outbox partitions --db mysql://app@db.example.com/shop
  weir outbox partitions --db postgres://app@db.example.com/shop --maintain --partition-keep 90d`,
	}
	f := cmd.Flags()
	f.BoolVar(&maintain, "maintain", false, "create and drop partitions first")
	f.BoolVar(&strict, "no-catch-all", false, "exit code 3 if rows are in the catch-all")
	asJSON.Flag(cmd.Flags(), "print one line of JSON")
	return v.command(cmd, func(ctx context.Context, out io.Writer) error {
		return v.withStore(ctx, func(store outbox.Store) error {
			desc, err := store.Describe(ctx)
			if err != nil {
				return err
			}
			p, ok := store.(outbox.Partitioner)
			if !ok {
				return fmt.Errorf("%s has no partitions", desc.Server)
			}
			if desc.Period == outbox.Unpartitioned {
				return fmt.Errorf("%s is not partitioned: `weir outbox migrate --layout history --partition day` makes one that is, with --convert of one that exists", store.Name())
			}
			var report *outbox.PartitionReport
			if maintain {
				spec := v.cfg.partitions
				spec.Period = desc.Period
				done, err := p.MaintainPartitions(ctx, spec)
				if err != nil {
					return err
				}
				report = &done
			}
			parts, err := p.Partitions(ctx)
			if err != nil {
				return err
			}
			rows, _ := outboxctl.Reach(parts)
			if asJSON.Given() {
				err = asJSON.Line(out, partitionsJSON(store.Name(), desc, parts, report))
			} else {
				err = printPartitions(out, parts, report)
			}
			if err == nil && strict && rows > 0 {
				err = cli.Shortfall(fmt.Errorf("%d rows are in the catch-all", rows))
			}
			return err
		})
	})
}

func printPartitions(out io.Writer, parts []outbox.Partition, report *outbox.PartitionReport) error {
	if report != nil {
		for _, part := range []struct {
			word  string
			names []string
		}{{"created", report.Created}, {"dropped", report.Dropped}, {"kept, for messages are pending in", report.Kept}} {
			if len(part.names) > 0 {
				fmt.Fprintf(out, "%s %s\n", part.word, strings.Join(part.names, ", "))
			}
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PARTITION\tFROM\tTO\tROWS")
	for _, p := range parts {
		if p.CatchAll {
			fmt.Fprintf(w, "%s\tcatch-all\t\t%d\n", p.Name, p.Rows)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t~%d\n", p.Name, day(p.From), day(p.To), p.Rows)
	}
	return w.Flush()
}

func day(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.DateOnly)
}

// partitionReport is one partition as JSON.
type partitionReport struct {
	Name     string    `json:"name"`                // its name
	From     time.Time `json:"from,omitzero"`       // inclusive
	To       time.Time `json:"to,omitzero"`         // exclusive
	CatchAll bool      `json:"catch_all,omitempty"` // it takes rows of any other time
	Rows     int64     `json:"rows"`                // an estimate; of the catch-all the number, up to 1000
}

// partitionsReport is all partitions, and the result of maintenance.
type partitionsReport struct {
	Table      string            `json:"table"`             // name of the outbox table
	Period     string            `json:"period"`            // of a partition: day or month
	Partitions []partitionReport `json:"partitions"`        // all that exist now
	Created    []string          `json:"created,omitempty"` // by this run
	Dropped    []string          `json:"dropped,omitempty"` // by this run
	Kept       []string          `json:"kept,omitempty"`    // due to be dropped, with pending messages
}

func partitionsJSON(table string, desc outbox.Description, parts []outbox.Partition, report *outbox.PartitionReport) partitionsReport {
	r := partitionsReport{Table: table, Period: desc.Period.String(), Partitions: make([]partitionReport, 0, len(parts))}
	for _, p := range parts {
		r.Partitions = append(r.Partitions, partitionReport{p.Name, p.From, p.To, p.CatchAll, p.Rows})
	}
	if report != nil {
		r.Created, r.Dropped, r.Kept = report.Created, report.Dropped, report.Kept
	}
	return r
}
