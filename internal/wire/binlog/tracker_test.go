package binlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"
)

func TestTrackerNamesTheStepOfEachEvent(t *testing.T) {
	const xaOnePhase, xaPrepared = 1, 0
	mysqlGTID := func(b *builder) *builder {
		body := make([]byte, 1+16+8)
		body[1], body[17] = 1, 9
		return b.add(GTIDEvent, body)
	}
	for _, tc := range []struct {
		name string
		b    *builder
		want string // one letter for each event: none, Commit, Rollback, Prepare, cut (X); in capitals if a transaction stays open
	}{
		{"rows", newBuilder(false).gtid(1, 0).table().insert(1, 1, 0).xid(), "nNNNc"},
		{"ended by a statement", newBuilder(false).gtid(1, 0).table().query("COMMIT"), "nNNc"},
		{"rolled back", newBuilder(false).gtid(1, 0).table().query("rollback"), "nNNr"},
		{"a statement alone", newBuilder(false).gtid(1, mariaStandalone).query("DROP TABLE t"), "nNc"},
		{"statements inside", newBuilder(false).gtid(1, 0).query("INSERT 1").query("SAVEPOINT a").query("COMMIT"), "nNNNc"},
		{"MySQL", mysqlGTID(newBuilder(false)).query("BEGIN").table().xid(), "nNNNc"},
		{"MySQL's DDL", mysqlGTID(newBuilder(false)).query("DROP TABLE t"), "nNc"},
		{"MySQL's table with rows", mysqlGTID(newBuilder(false)).query("CREATE TABLE `t` (id INT) START TRANSACTION").table().xid(), "nNNNc"},
		{"prepared", mysqlGTID(newBuilder(false)).query("XA START X'31',X'',1").table().query("XA END X'31',X'',1").add(XAPrepareEvent, []byte{xaPrepared}), "nNNNNp"},
		{"in one phase", mysqlGTID(newBuilder(false)).query("XA START X'31',X'',1").add(XAPrepareEvent, []byte{xaOnePhase}), "nNNc"},
		{"cut by a GTID", newBuilder(false).gtid(1, 0).table().gtid(2, 0).xid(), "nNNXc"},
		{"cut by a rotation", newBuilder(false).gtid(1, 0).rotate("f2").gtid(2, 0).xid(), "nNxNc"},
		{"cut by BEGIN", newBuilder(false).query("BEGIN").table().query("BEGIN").xid(), "nNNXc"},
		{"no GTID", newBuilder(false).query("BEGIN").table().xid().query("DROP TABLE t"), "nNNcc"},
		{"compressed", mysqlGTID(newBuilder(false)).add(TransactionPayloadEvent, []byte{0}), "nNc"},
	} {
		f, err := NewFile(bytes.NewReader(tc.b.file()), "f1")
		if err != nil {
			t.Fatal(err)
		}
		var tracker Tracker
		got := ""
		for {
			e, err := f.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			step, err := tracker.Observe(e)
			if err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			letters := "ncrpx"
			if tracker.InTransaction() {
				letters = "NCRPX"
			}
			got += string(letters[step])
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestTrackerKnowsATransactionsTimeAtItsBeginning(t *testing.T) {
	f, err := NewFile(bytes.NewReader(newBuilder(true).gtid(1, 0).table().xid().file()), "f1")
	if err != nil {
		t.Fatal(err)
	}
	var tracker Tracker
	var got []string
	for {
		e, err := f.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			_, err = tracker.Observe(e)
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(e.Type, " ", tracker.Current(), " ", tracker.CurrentTime().Equal(time.Unix(1700000000, 0))))
	}
	want := []string{"FORMAT_DESCRIPTION  false", "MARIADB_GTID 0-7-1 true", "TABLE_MAP 0-7-1 true", "XID  false"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
