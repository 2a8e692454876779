package load

import (
	"strconv"
	"testing"
)

func TestTemplatesTakeMarksAndLiterals(t *testing.T) {
	dollar := func(i int) string { return "$" + strconv.Itoa(i+1) }
	for _, tc := range []struct {
		workload      Workload
		args          []int64
		text, literal string
	}{
		{
			Insert{Hint: "/* batch:10 */"},
			[]int64{3, -4},
			"/* batch:10 */ INSERT INTO test (value, created_at) VALUES ($1, $2)",
			"/* batch:10 */ INSERT INTO test (value, created_at) VALUES (3, -4)",
		},
		{Select{Table: "k"}, []int64{17}, "SELECT value FROM k WHERE id = $1", "SELECT value FROM k WHERE id = 17"},
	} {
		if got := tc.workload.Statement().Text(dollar); got != tc.text {
			t.Errorf("got  %q\nwant %q", got, tc.text)
		}
		if got := string(tc.workload.Statement().Append(nil, tc.args...)); got != tc.literal {
			t.Errorf("got  %q\nwant %q", got, tc.literal)
		}
	}
}

func TestFailPercentIsKept(t *testing.T) {
	w := Insert{FailPercent: 5}
	failing := 0
	for n := range int64(20_000) {
		if w.Fails(3, n) {
			failing++
		}
	}
	if failing < 850 || failing > 1150 { // 1000 expected, 31 standard deviation
		t.Errorf("%d of 20000 fail, want about 1000", failing)
	}
	if (Insert{}).HasGuard() || !(Insert{Guarded: true}).HasGuard() || !w.HasGuard() {
		t.Error("the table's constraint does not follow from what is asked for")
	}
}

func TestKeysStayWithinTheTable(t *testing.T) {
	w := Select{Keys: 7}
	seen := make(map[int64]bool)
	for n := range int64(500) {
		k := w.Key(1, n)
		if k < 1 || k > 7 {
			t.Fatalf("key %d of a table of 7", k)
		}
		seen[k] = true
	}
	if len(seen) != 7 {
		t.Errorf("only %d of 7 keys are asked for", len(seen))
	}
}
