package pgrepl_test

import (
	"context"
	"fmt"
	"log"

	"github.com/weirdb/weir/internal/wire/pgrepl"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Tails the inserts of one table from now on. What has been printed is confirmed
// transaction by transaction.
func ExampleConn_StartTail() {
	ctx := context.Background()
	cfg, err := pgwire.ParseDSN("postgres://app@db.example.com/shop")
	if err != nil {
		log.Fatal(err)
	}
	table := pgrepl.Table{Namespace: "public", Name: "outbox"}
	report, err := pgrepl.Probe(ctx, cfg, pgrepl.ProbeConfig{Table: table, Publication: "weir"})
	if err != nil {
		log.Fatal(err)
	}
	if !report.Possible() {
		log.Fatal("cannot tail the table: ", report.Reason())
	}
	conn, err := pgrepl.Connect(ctx, cfg, pgrepl.Logical)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	// The publication before the slot: what a slot decodes must be published when
	// it was committed.
	if _, err := pgrepl.EnsurePublication(ctx, conn, "weir", table); err != nil {
		log.Fatal(err)
	}
	if _, err := conn.CreateSlot(ctx, pgrepl.SlotConfig{Name: "weir", Kind: pgrepl.LogicalSlot, Temporary: true}); err != nil {
		log.Fatal(err)
	}
	tail, err := conn.StartTail(ctx, pgrepl.TailConfig{Slot: "weir", Publications: []string{"weir"}})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range tail.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		switch event.Kind {
		case pgrepl.EventInsert:
			body := event.Relation.Column("body")
			fmt.Printf("%s: %s\n", event.Tx.CommitLSN, event.New[body].Data)
		case pgrepl.EventCommit:
			tail.Confirm(event.End)
		}
	}
}
