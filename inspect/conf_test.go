package inspect

import (
	"reflect"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

func TestParseConf(t *testing.T) {
	with := func(change func(c *Conf)) Conf {
		c := DefaultConf()
		change(&c)
		return c
	}
	divisions := func(d ...uint64) Conf {
		return with(func(c *Conf) {
			for i := range c.Divisions {
				c.Divisions[i] = d[min(i, len(d)-1)]
			}
		})
	}
	for text, want := range map[string]Conf{
		"":                         DefaultConf(),
		"expandable_segments:True": with(func(c *Conf) { c.Expandable = true }),
		" expandable_segments : True , max_split_size_mb : 64 ":            with(func(c *Conf) { c.Expandable, c.MaxSplit = true, 64*mib }),
		"max_split_size_mb:18446744073709551615":                           with(func(c *Conf) { c.MaxSplit = 1<<64 - 1<<20 }),
		"max_non_split_rounding_mb:21":                                     with(func(c *Conf) { c.MaxNonSplitRounding = 21 * mib }),
		"large_segment_size_mb:11":                                         with(func(c *Conf) { c.LargeSegment = 11 * mib }),
		"max_split_size_mb:40,large_segment_size_mb:40":                    with(func(c *Conf) { c.LargeSegment, c.MaxSplit = 40*mib, 40*mib }),
		"garbage_collection_threshold:0.8":                                 with(func(c *Conf) { c.GCThreshold = 0.8 }),
		"per_process_memory_fraction:0":                                    with(func(c *Conf) { c.MemoryFraction = 0 }),
		"throw_on_cudamalloc_oom:True":                                     with(func(c *Conf) { c.ThrowOnOOM = true }),
		"backend:hipMallocAsync":                                           with(func(c *Conf) { c.Backend = "cudaMallocAsync" }),
		"expandable_segments_reserve:0.5":                                  with(func(c *Conf) { c.ReserveFraction = 0.5 }),
		"expandable_segments_reserve:40G":                                  with(func(c *Conf) { c.ReserveBytes = 40 << 30 }),
		"expandable_segments_reserve:much":                                 DefaultConf(),
		"expandable_segments_reserve_by_class:[a:0.5,b:2G],backend:native": DefaultConf(),
		"pinned_num_register_threads:128,pinned_use_background_threads:True,pinned_reserve_segment_size_mb:0,release_lock_on_cudamalloc:False": DefaultConf(),
		"roundup_power2_divisions:8":                        divisions(8),
		"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]": divisions(1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8),
		"roundup_power2_divisions:[4:2]":                    divisions(2, 2, 2, 0),
		"roundup_power2_divisions:[1:4,4:2]":                divisions(4, 0, 2, 0),
		"roundup_power2_divisions:[64:8,]":                  divisions(8, 8, 8, 8, 8, 8, 8, 0),
		"roundup_power2_divisions:[1048576:4]":              divisions(4),
		"roundup_power2_divisions:[>:4]":                    divisions(4),
		"roundup_power2_divisions:[]":                       DefaultConf(),
	} {
		got, err := ParseConf(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
		if back, err := ParseConf(got.String()); err != nil || back != got {
			t.Errorf("%q written as %q reads %+v, %v", text, got.String(), back, err)
		}
	}
}

func TestParseConfErrors(t *testing.T) {
	for text, want := range map[string]string{
		"expandable_segment:True":                       `unknown option "expandable_segment": did you mean expandable_segments?`,
		"max_split_size:64":                             "did you mean max_split_size_mb?",
		"expandable_segments":                           "expandable_segments has no value",
		"expandable_segments:true":                      `"true" is neither True nor False`,
		"expandable_segments:True;max_split_size_mb:64": `"True;max_split_size_mb" is neither`,
		"expandable_segments:True:max_split_size_mb:64": "where a comma was expected",
		"max_split_size_mb:19":                          "19 MiB is too small, it takes at least 20",
		"max_split_size_mb:-1":                          "not a whole number",
		"max_split_size_mb:":                            `"" is not a whole number`,
		"large_segment_size_mb:10":                      "at least 11",
		"large_segment_size_mb:64,max_split_size_mb:32": "must be at least large_segment_size_mb, which is 64",
		"garbage_collection_threshold:1":                "not between 0 and 1",
		"garbage_collection_threshold:NaN":              "not a number",
		"per_process_memory_fraction:1.5":               "not from 0 to 1",
		"per_process_memory_fraction:half":              "not a number",
		"backend:mine":                                  "neither native nor cudaMallocAsync",
		"pinned_num_register_threads:3":                 "no power of two of at most 128",
		"roundup_power2_divisions:3":                    "3 is no power of two",
		"roundup_power2_divisions:0":                    "0 is no power of two",
		"roundup_power2_divisions:[3:4]":                "size in MiB: 3 is no power of two",
		"roundup_power2_divisions:[4:3]":                "3 is no power of two",
		"roundup_power2_divisions:[4]":                  "has no number",
		"roundup_power2_divisions:[4:2":                 "no closing bracket",
		"roundup_power2_divisions:[4:2:8]":              "where a comma was expected",
		"expandable_segments_reserve_by_class:[a:1":     "no closing bracket",
		",": `unknown option ","`,
	} {
		got, err := ParseConf(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if got != DefaultConf() {
			t.Errorf("%q: an error came with %+v", text, got)
		}
	}
}

// FuzzParseConf reads any text; what is read is written and read again.
func FuzzParseConf(f *testing.F) {
	for _, text := range oracleConfs {
		f.Add(text)
	}
	f.Add("roundup_power2_divisions:[256:1,512:2,1024:4,>:8],backend:native,expandable_segments_reserve:40G")
	f.Add("[[]:,>")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseConf(text)
		if err != nil {
			if c != DefaultConf() {
				t.Errorf("%q: an error came with %+v", text, c)
			}
			return
		}
		if back, err := ParseConf(c.String()); err != nil || back != c {
			t.Errorf("%q written as %q reads %+v, %v", text, c.String(), back, err)
		}
		for size := uint64(1); size > 0 && size < maxRequest; size = size*3 + 1 {
			if r := c.Round(size); r < size || r%minBlock != 0 || r > 2*size+minBlock || c.segmentSize(r) < r {
				t.Errorf("%q: %d rounded to %d, segment of %d", text, size, r, c.segmentSize(r))
			}
		}
	})
}

func TestRecordedConf(t *testing.T) {
	s := trace.Settings{Known: true, MaxSplitSize: -1}
	if got := RecordedConf(s); got != DefaultConf() {
		t.Errorf("settings without anything: %+v", got)
	}
	if got := RecordedConf(trace.Settings{Conf: "expandable_segments:True"}); got != DefaultConf() {
		t.Errorf("unknown settings: %+v", got)
	}
	s = trace.Settings{Known: true, Conf: "new_option:[1,2],large_segment_size_mb:32,max_split_size_mb:77,page_size:1g", MaxSplitSize: 64 * mib, GCThreshold: 0.5, Expandable: true}
	s.RoundupDivisions[3], s.RoundupDivisions[4] = 4, 3
	want := DefaultConf()
	want.LargeSegment, want.MaxSplit, want.GCThreshold, want.Expandable, want.Divisions[3] = 32*mib, 64*mib, 0.5, true, 4
	if got := RecordedConf(s); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	s.GCThreshold = -3
	if got := RecordedConf(s); got.GCThreshold != 0 {
		t.Errorf("a threshold of -3 became %v", got.GCThreshold)
	}
}
