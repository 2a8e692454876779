package binlog

import (
	"math/rand/v2"
	"testing"
)

const testUUID = "00112233-4455-6677-8899-aabbccddeeff"

func TestGTIDSetsReadAsTheyAreWritten(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"", ""},
		{" , ", ""},
		{"0-1-5", "0-1-5"},
		{"2-1-3, 0-1-5", "0-1-5,2-1-3"},
		{testUUID + ":1-5", testUUID + ":1-5"},
		{testUUID + ":7:1-5:6", testUUID + ":1-7"},
		{testUUID + ":9:1-3:5", testUUID + ":1-3:5:9"},
		{"00112233445566778899AABBCCDDEEFF:1", testUUID + ":1"},
		{testUUID + ":2,\n" + testUUID + ":1", testUUID + ":1-2"},
		{testUUID + ":1-2:Tag:4:z:1-9", testUUID + ":1-2," + testUUID + ":tag:4," + testUUID + ":z:1-9"},
	} {
		set, err := ParseGTIDSet(tc.in)
		if err != nil || set.String() != tc.want {
			t.Errorf("%q reads as %q, %v, want %q", tc.in, set, err, tc.want)
		}
		if set.IsEmpty() != (tc.want == "") {
			t.Errorf("%q: empty is %v", tc.in, set.IsEmpty())
		}
	}
	for _, bad := range []string{
		"x", "1-2", "1-2-3-4", "0-1-5,0-2-6", "0-1-x", "4294967296-1-1", "zz:1", testUUID + ":0", testUUID + ":5-4", testUUID + ":1-",
		testUUID + ":1,0-1-5", "00:1",
	} {
		if set, err := ParseGTIDSet(bad); err == nil {
			t.Errorf("%q reads as %q", bad, set)
		}
	}
}

// TestGTIDSetIsASet compares with a map.
func TestGTIDSetIsASet(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	uuid := [16]byte{1}
	for range 200 {
		set, oracle := &GTIDSet{}, map[uint64]bool{}
		for range rnd.IntN(40) {
			n := 1 + rnd.Uint64N(30)
			set.Add(GTID{UUID: uuid, Seq: n})
			oracle[n] = true
		}
		before := set.Clone()
		for n := uint64(1); n < 32; n++ {
			if set.Contains(GTID{UUID: uuid, Seq: n}) != oracle[n] {
				t.Fatalf("%s: %d is %v", set, n, oracle[n])
			}
		}
		back, err := parseMySQLSet(set.appendMySQL(nil))
		if err != nil || back.String() != set.String() {
			t.Fatalf("%s encoded reads as %s, %v", set, back, err)
		}
		set.Add(GTID{UUID: uuid, Seq: 100})
		if before.String() == set.String() {
			t.Fatal("a clone shares memory")
		}
	}
}

func TestGTIDsOfMariaDBArePositions(t *testing.T) {
	set, err := ParseGTIDSet("0-1-5,3-1-1")
	if err != nil {
		t.Fatal(err)
	}
	set.Add(GTID{Domain: 0, Server: 2, Seq: 6})
	set.Add(GTID{})
	if set.String() != "0-2-6,3-1-1" {
		t.Errorf("%s", set)
	}
	for g, want := range map[GTID]bool{
		{Domain: 0, Server: 1, Seq: 4}: true, {Domain: 0, Server: 1, Seq: 7}: false, {Domain: 1, Server: 1, Seq: 1}: false, {}: false,
	} {
		if set.Contains(g) != want {
			t.Errorf("%s: %v, want %v", g, !want, want)
		}
	}
	var none *GTIDSet
	if !none.IsEmpty() || none.Clone() != nil || none.String() != "" || none.Contains(GTID{Seq: 1}) {
		t.Error("nil is not the unknown set")
	}
}

func TestVarlenIntegers(t *testing.T) {
	for _, tc := range []struct {
		in   []byte
		want uint64
	}{
		{[]byte{0}, 0},
		{[]byte{0xfe}, 127},
		{[]byte{0x01, 0x02}, 128},
		{[]byte{0xfd, 0xff}, 1<<14 - 1},
		{[]byte{0x03, 0x00, 0x02}, 1 << 14},
		{[]byte{0x7f, 1, 0, 0, 0, 0, 0, 0}, 1},
		{[]byte{0xff, 1, 0, 0, 0, 0, 0, 0, 0x80}, 1<<63 + 1},
	} {
		c := cursor{b: tc.in}
		if got := c.varlen(); got != tc.want || c.bad || len(c.b) != 0 {
			t.Errorf("%x reads as %d, want %d", tc.in, got, tc.want)
		}
	}
}
