package proxybench

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

func TestHeapBySite(t *testing.T) {
	in := func(names ...string) []*profile.Location {
		var out []*profile.Location
		for _, n := range names {
			out = append(out, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: n}}}})
		}
		return out
	}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "inuse_objects"}, {Type: "inuse_space"}},
		Sample: []*profile.Sample{
			{Location: in("runtime.mallocgc", "bufio.NewReaderSize", "main.main"), Value: []int64{1, 4096}},
			{Location: in("bufio.NewReaderSize"), Value: []int64{1, 4096}},
			{Location: in("runtime.allocm", "runtime.newm"), Value: []int64{1, 100}},
			{Location: in("github.com/weirdb/weir/internal/proxy/core.(*Base).Get"), Value: []int64{1, 9000}},
			{Location: in("main.freed"), Value: []int64{0, 0}},
		},
	}
	by, err := bySite(p, "inuse_space")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"bufio.NewReaderSize": 8192, "runtime.newm": 100, "proxy/core.(*Base).Get": 9000, "main.freed": 0}
	if !maps.Equal(by, want) {
		t.Errorf("by site %v, want %v", by, want)
	}
	if top := largest(by); len(top) != 3 || top[0].Function != "proxy/core.(*Base).Get" || top[2].Bytes != 100 {
		t.Errorf("largest %v", top)
	}
	if _, err := bySite(p, "alloc_space"); err == nil {
		t.Error("a profile without allocations was read")
	}
}

func TestMemoryOfPage(t *testing.T) {
	const page = "# HELP go_memstats_mallocs_total x\ngo_memstats_mallocs_total 1.5e+06\ngo_memstats_alloc_bytes_total 2e+09\ngo_memstats_heap_alloc_bytes 4096\nweir_x 1\n"
	got, err := memoryOfPage(strings.NewReader(page))
	if err != nil || got[heapInUse] != 4096 || got[heapBytes] != 2e9 || got[heapObjects] != 1.5e6 {
		t.Errorf("read %v, %v", got, err)
	}
	for _, bad := range []string{"weir_x 1\n", strings.Replace(page, "4096", "many", 1)} {
		if got, err := memoryOfPage(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}
