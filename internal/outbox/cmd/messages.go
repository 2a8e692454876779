package outboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/outbox"
)

// messageQuery has the flags that select messages.
type messageQuery struct {
	state         string
	ids           []string
	topic, key    string
	since, before string
	limit         int
	all           bool
	newIdentity   bool // of replay

	parsed outbox.Query
}

// add defines the flags. states are the valid ones, the default first.
func (q *messageQuery) add(f *pflag.FlagSet, limit int, states ...outbox.State) {
	f.StringVar(&q.state, "state", string(states[0]), "STATE|state of the messages: "+namesOf(states))
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	cli.Takes(f, "state", names...)
	f.StringSliceVar(&q.ids, "id", nil, "ID|messages with this id (repeatable)")
	f.Lookup("id").DefValue = ""
	f.StringVar(&q.topic, "topic", "", "TOPIC|messages of this topic")
	f.StringVar(&q.key, "key", "", "KEY|messages of this key")
	f.StringVar(&q.since, "since", "", "TIME|created (dead letters: given up) at or after: 2026-01-31, 2026-01-31T12:00:00Z, or 2h for two hours ago")
	f.StringVar(&q.before, "before", "", "TIME|created (dead letters: given up) before this time")
	f.IntVar(&q.limit, "limit", limit, "N|at most this many messages; none for all")
	cli.OrNone(f, "limit", "0")
}

// namesOf joins states as in a sentence: scheduled, pending or dead.
func namesOf(states []outbox.State) string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// parse parses the flags.
func (q *messageQuery) parse(now time.Time, states ...outbox.State) (err error) {
	p := outbox.Query{State: outbox.State(q.state), Topic: q.topic, Key: q.key, Limit: q.limit, NewIdentity: q.newIdentity}
	if !slices.Contains(states, p.State) {
		return fmt.Errorf("--state %q: want %s", q.state, namesOf(states))
	}
	if q.limit < 0 {
		return fmt.Errorf("--limit %d: want at least 0", q.limit)
	}
	for _, text := range q.ids {
		id, err := outbox.ParseID(text)
		if err != nil {
			return fmt.Errorf("--id %q: want a UUID", text)
		}
		p.IDs = append(p.IDs, id)
	}
	if p.Since, err = parseMoment(q.since, now); err != nil {
		return fmt.Errorf("--since %q: %w", q.since, err)
	}
	if p.Before, err = parseMoment(q.before, now); err != nil {
		return fmt.Errorf("--before %q: %w", q.before, err)
	}
	q.parsed = p
	return nil
}

// selects reports whether something besides state and limit narrows the selection.
func (q *messageQuery) selects() bool {
	return len(q.ids) > 0 || q.topic != "" || q.key != "" || q.since != "" || q.before != ""
}

// needSelection returns an error unless messages are selected or --all is given.
func (q *messageQuery) needSelection() error {
	switch {
	case !q.selects() && !q.all:
		return errors.New("which messages? Select some by --id, --topic, --key, --since or --before, or take --all")
	case q.selects() && q.all:
		return errors.New("--all and a selection contradict each other")
	}
	return nil
}

// parseMoment parses a date, a time, or a duration before now.
func parseMoment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	if d, err := cli.ParseSpan(text); err == nil {
		return now.Add(-d), nil
	}
	return time.Time{}, errors.New("want a time such as 2026-01-31T12:00:00Z, a date, or how long ago such as 2h")
}

func newOutboxInspect() *cobra.Command {
	v := &outboxVerb{}
	var q messageQuery
	var payload bool
	var asJSON cli.JSON[outboxctl.MessageReport]
	states := []outbox.State{outbox.Pending, outbox.Scheduled, outbox.Dead, outbox.Delivered}
	cmd := &cobra.Command{
		Use:   "inspect --db DSN",
		Short: "List messages and their state",
		Long: `List messages of one state, oldest first; by default the pending ones. With --json
each is a line of JSON.`,
		Example: `  weir outbox inspect --db sqlite:shop.db
  weir outbox inspect --db postgres://app@db.example.com/shop --state dead --since 2h
  weir outbox inspect --db mysql://app@db.example.com/shop --key order-42 --payload --json`,
		PreRunE: func(*cobra.Command, []string) error { return q.parse(time.Now(), states...) },
	}
	f := cmd.Flags()
	q.add(f, 50, states...)
	f.BoolVar(&payload, "payload", false, "show payloads, too")
	asJSON.Flag(cmd.Flags(), "print a line of JSON for each")
	return v.command(cmd, func(ctx context.Context, out io.Writer) error {
		return v.withStore(ctx, func(store outbox.Store) error {
			found, err := store.List(ctx, q.parsed)
			if err != nil {
				return err
			}
			if asJSON.Given() {
				for i := range found {
					if err := asJSON.Line(out, outboxctl.ReportMessage(&found[i], payload)); err != nil {
						return err
					}
				}
				return nil
			}
			return printMessages(out, found, payload, q.parsed)
		})
	})
}

func printMessages(out io.Writer, found []outbox.Listed, payload bool, q outbox.Query) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "ID\tTOPIC\tKEY\tCREATED\tATTEMPTS\t" + map[outbox.State]string{
		outbox.Pending: "NEXT ATTEMPT\tERROR", outbox.Scheduled: "DUE", outbox.Dead: "DEAD SINCE\tREASON\tERROR", outbox.Delivered: "DELIVERED",
	}[q.State]
	if payload {
		head += "\tPAYLOAD"
	}
	fmt.Fprintln(w, head)
	for i := range found {
		m := &found[i]
		row := []string{m.ID.String(), shown(m.Topic, 40), shown(m.Key, 40), moment(m.CreatedAt), strconv.Itoa(m.Attempts)}
		switch q.State {
		case outbox.Pending:
			row = append(row, moment(m.DueAt), shown(m.Error, 80))
		case outbox.Scheduled:
			row = append(row, moment(m.DueAt))
		case outbox.Dead:
			row = append(row, moment(m.EndedAt), m.Reason, shown(m.Error, 80))
		case outbox.Delivered:
			row = append(row, moment(m.EndedAt))
		}
		if payload {
			row = append(row, shown(string(m.Payload), 2000))
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if q.Limit > 0 && len(found) == q.Limit {
		fmt.Fprintf(out, "(the first %d; --limit for more)\n", q.Limit)
	}
	return nil
}

// moment formats a time for people; "-" for none.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// shown cuts a text to at most n bytes and replaces control characters, which could manipulate a
// terminal, and invalid UTF-8 by dots.
func shown(text string, n int) string {
	cut := ""
	if len(text) > n {
		for n > 0 && !utf8.RuneStart(text[n]) {
			n--
		}
		text, cut = text[:n], "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError || r >= 0x7f && r < 0xa0 {
			return '.'
		}
		return r
	}, text) + cut
}

func newOutboxReplay() *cobra.Command {
	return newOutboxMove(&cobra.Command{
		Use:   "replay --db DSN {--all | --id ID | --topic TOPIC | ...}",
		Short: "Deliver dead letters, or delivered messages, again",
		Long: `Deliver dead letters again, with their old ids and all their attempts; or, with layout
history and --state delivered, delivered messages. They follow everything that is
pending, even messages of their own keys. A broker that remembers ids (NATS JetStream,
within its stream's duplicate window) drops those that it has seen, and so does a
consumer with an inbox. --new-identity gives each message a new dedup key, so that it is
accepted again; the id stays the same.`,
		Example: `  weir outbox replay --db sqlite:shop.db --all
  weir outbox replay --db postgres://app@db.example.com/shop --topic orders --since 2h
  weir outbox replay --db mysql://app@db.example.com/shop --topic orders --new-identity
  weir outbox replay --db mysql://app@db.example.com/shop --state delivered --id 0199d1c2-7e8f-7a31-8a43-0d5f6f3c5a11`,
	}, "requeued", func(n int64, state string) requeued { return requeued{n, state} }, func(ctx context.Context, s outbox.Store, q outbox.Query) (int64, error) { return s.Requeue(ctx, q) })
}

func newOutboxPurge() *cobra.Command {
	return newOutboxMove(&cobra.Command{
		Use:   "purge --db DSN {--all | --before TIME | --id ID | ...}",
		Short: "Delete dead letters, or delivered messages",
		Long: `Delete dead letters or, with layout history and --state delivered, delivered messages.
Pending and scheduled messages are never deleted.`,
		Example: `  weir outbox purge --db sqlite:shop.db --before 30d
  weir outbox purge --db postgres://app@db.example.com/shop --state delivered --before 2026-01-31`,
	}, "purged", func(n int64, state string) purged { return purged{n, state} }, func(ctx context.Context, s outbox.Store, q outbox.Query) (int64, error) { return s.Purge(ctx, q) })
}

// oldIDs warns that a broker may drop messages that are delivered again.
const oldIDs = "They keep their ids: a broker that remembers ids drops those that it has had, as NATS JetStream does\n" +
	"within the stream's duplicate window (2 minutes unless it was changed); the relay counts them as delivered\n" +
	"and in weir_outbox_repeated_messages_total. Replay later than that window, or with --new-identity."

// newIDs is the note for messages with a new identity.
const newIDs = "Each has a new dedup key: brokers and inboxes take it for a message that they have not had."

// requeued is what `weir outbox replay --json` prints.
type requeued struct {
	Requeued int64  `json:"requeued"` // messages
	State    string `json:"state"`    // that they were in: dead or delivered
}

// purged is what `weir outbox purge --json` prints.
type purged struct {
	Purged int64  `json:"purged"` // messages
	State  string `json:"state"`  // that they were in: dead or delivered
}

// newOutboxMove returns a verb that requeues or purges selected messages and prints how many, with
// --json as outcome. done is the word for what it did.
func newOutboxMove[T any](cmd *cobra.Command, done string, outcome func(n int64, state string) T, move func(context.Context, outbox.Store, outbox.Query) (int64, error)) *cobra.Command {
	v := &outboxVerb{}
	var q messageQuery
	var asJSON cli.JSON[T]
	states := []outbox.State{outbox.Dead, outbox.Delivered}
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if err := q.parse(time.Now(), states...); err != nil {
			return err
		}
		return q.needSelection()
	}
	f := cmd.Flags()
	q.add(f, 0, states...)
	f.Lookup("limit").DefValue = ""
	if done == "requeued" {
		f.BoolVar(&q.newIdentity, "new-identity", false, "give each message a dedup key of its own, for brokers and inboxes that remember what they have had")
	}
	f.BoolVar(&q.all, "all", false, "all messages of the state")
	asJSON.Flag(cmd.Flags(), "print one line of JSON")
	return v.command(cmd, func(ctx context.Context, out io.Writer) error {
		return v.withStore(ctx, func(store outbox.Store) error {
			n, err := move(ctx, store, q.parsed)
			if err != nil && n > 0 {
				err = fmt.Errorf("after %d messages: %w", n, err)
			}
			if err != nil {
				return err
			}
			if asJSON.Given() {
				return asJSON.Line(out, outcome(n, q.state))
			}
			fmt.Fprintf(out, "%s %d %s message%s\n", done, n, q.state, plural(n))
			switch {
			case n == 0 || done != "requeued":
			case q.newIdentity:
				fmt.Fprintln(out, newIDs)
			default:
				fmt.Fprintln(out, oldIDs)
			}
			return nil
		})
	})
}
