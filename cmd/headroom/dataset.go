package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

// dataset is the data of a run: a text to train on, or samples of classes.
type dataset struct {
	corpus  *data.Corpus
	words   words
	samples train.Samples
	classes *data.TextClasses // whose texts the samples are; nil: they are images
	test    train.Set         // nil: none
	closers []func() error
}

// words are a vocabulary with the tokens that have a meaning of their own.
type words struct {
	data.Tokenizer
	mask       data.Mask
	first, pad int32
}

// dataFlags say where data are.
type dataFlags struct {
	data       []string
	vocab      string
	validation float64
}

// openData opens what c is to be trained on and, of a new run, enters into c what
// the data say: numbers of classes, sizes of images and vocabularies.
func (f *dataFlags) openData(ctx context.Context, c *train.Config, stderr io.Writer) (d *dataset, err error) {
	d = &dataset{}
	for _, path := range f.data {
		if _, err := os.Stat(path); err != nil {
			return d, usagef("--data %s: %w", path, plainPathError(err))
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if c.ResNet != (nn.ResNetConfig{}) {
		return d, f.images(d, c, stderr)
	}
	if d.words, err = f.vocabulary(c); err != nil {
		return d, err
	}
	if c.Task == train.Classes {
		return d, f.texts(ctx, d, c, stderr)
	}
	return d, f.text(ctx, d, c, stderr)
}

// plainPathError is what is wrong with a path, without the path.
func plainPathError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("there is no such file or folder")
	}
	if of := (*fs.PathError)(nil); errors.As(err, &of) {
		return of.Err
	}
	return err
}

func (d *dataset) close() error {
	var errs []error
	for _, closer := range d.closers {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}

// vocabulary is the one that c's model was made for; of a BERT with words, the
// model is made for it.
func (f *dataFlags) vocabulary(c *train.Config) (words, error) {
	if c.BERT == (nn.BERTConfig{}) || c.Model == "bert-mini" {
		if f.vocab != "" {
			return words{}, usagef("--vocab %s: model %s has its own vocabulary; --vocab is for bert-base and bert-large", f.vocab, c.Model)
		}
		name := "gpt2"
		if c.GPT2.Vocab+c.MoE.Vocab == 256 || c.Model == "bert-mini" {
			name = "bytes"
		}
		tok, err := data.NewTokenizer(name)
		const mask, first = 256, 257 // of bert-mini
		return words{tok, data.Mask{Token: mask, Random: mask}, first, 0}, err
	}
	if f.vocab == "" {
		return words{}, usagef("model %s reads words: give its vocabulary with --vocab FILE, the vocab.txt that is published with BERT models (bert-mini reads bytes and needs none)", c.Model)
	}
	w, err := data.OpenWordPiece(f.vocab)
	if err != nil {
		return words{}, usageError{err}
	}
	c.BERT.Vocab = w.VocabSize()
	return words{w, data.Mask{Token: w.Mask, Random: w.VocabSize()}, w.First, w.Pad}, nil
}

// text opens a text for training on what follows or on hidden words.
func (f *dataFlags) text(ctx context.Context, d *dataset, c *train.Config, stderr io.Writer) (err error) {
	if len(f.data) == 0 {
		path, err := defaultText()
		if err != nil {
			return err
		}
		f.data = []string{path}
	}
	if d.corpus, err = f.corpus(ctx, d.words); err != nil {
		return err
	}
	d.closers = append(d.closers, d.corpus.Close)
	s := d.corpus.Summary()
	fact(stderr, "data", "files %d, bytes %d, tokens %d (%s)", s.Files, s.Bytes, s.Tokens, d.words.Name())
	if f.validation == 0 {
		return nil
	}
	part, held, err := d.corpus.Split(f.validation)
	if err != nil {
		return usageError{err}
	}
	windows := data.Windows{Corpus: held, Seq: c.Seq}
	if windows.Len() == 0 {
		return usagef("--validation %v keeps %d tokens back, too few for a sequence of %d", f.validation, held.Len(), c.Seq)
	}
	d.corpus, d.test, c.Test = part, train.TextSet{Windows: windows}, true
	if c.Task == train.Hidden {
		d.test = train.HiddenSet{Windows: windows, Mask: d.words.mask}
	}
	return nil
}

// corpus is text in memory, or a file of tokens, which stays where it is.
func (f *dataFlags) corpus(ctx context.Context, w words) (*data.Corpus, error) {
	if len(f.data) == 1 {
		switch filepath.Ext(f.data[0]) {
		case ".bin":
			return data.OpenCorpus(f.data[0], data.Uint16, w.Tokenizer)
		case ".npy":
			return data.OpenCorpusArray(f.data[0], w.Tokenizer)
		}
	}
	return data.Load(ctx, f.data, w.Tokenizer)
}

// folder is the one folder of samples in classes.
func (f *dataFlags) folder(c *train.Config, of string) (string, error) {
	if f.validation != 0 {
		return "", usagef("--validation keeps back a part of a text; %s have a test set in files of its own", of)
	}
	if len(f.data) != 1 {
		return "", usagef("model %s needs --data DIR, one folder of %s (headroom train --help)", c.Model, of)
	}
	return f.data[0], nil
}

// images opens a folder of images.
func (f *dataFlags) images(d *dataset, c *train.Config, stderr io.Writer) error {
	if f.vocab != "" {
		return usagef("--vocab is for models that read words, not for %s", c.Model)
	}
	dir, err := f.folder(c, "images")
	if err != nil {
		return err
	}
	set, err := data.OpenImageSet(dir, "train")
	if errors.Is(err, fs.ErrNotExist) {
		return usagef("--data %s: %w", dir, err)
	}
	if err != nil {
		return err
	}
	d.closers = append(d.closers, set.Close)
	test, err := data.OpenImageSet(dir, "test")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	shape, tests, classes := set.Images.Shape(), 0, max(set.Labels.Classes, 2)
	if err == nil {
		d.closers = append(d.closers, test.Close)
		if got := test.Images.Shape(); [3]int(got) != [3]int(shape) {
			return fmt.Errorf("images to test on have the shape %v, those to train on %v", got, shape)
		}
		d.test, tests, classes = train.Samples{test.Images, test.Labels}, test.Images.Len(), max(classes, test.Labels.Classes)
	}
	d.samples = train.Samples{set.Images, set.Labels}
	c.ResNet.Channels, c.ResNet.Classes, c.Image, c.Test = shape[0], classes, [2]int(shape[1:]), d.test != nil
	fact(stderr, "data", "%d images of %d×%d in %d classes, %d to test on", set.Images.Len(), shape[1], shape[2], classes, tests)
	return nil
}

// texts opens a folder with a folder of texts for each class, or with two such
// folders, train and test.
func (f *dataFlags) texts(ctx context.Context, d *dataset, c *train.Config, stderr io.Writer) error {
	dir, err := f.folder(c, "texts, with a folder for each class")
	if err != nil {
		return err
	}
	form := data.TextForm{Tokenizer: d.words.Tokenizer, Length: c.Seq, First: d.words.first, Pad: d.words.pad}
	_, err = os.Stat(filepath.Join(dir, "train"))
	parted := err == nil
	from := dir
	if parted {
		from = filepath.Join(dir, "train")
	}
	set, err := data.OpenTextClasses(ctx, from, form)
	if err != nil {
		return usagef("--data %s: %w", dir, err)
	}
	tests := 0
	if parted {
		test, err := data.OpenTextClasses(ctx, filepath.Join(dir, "test"), form)
		if err != nil {
			return err
		}
		if a, b := strings.Join(set.Names, ", "), strings.Join(test.Names, ", "); a != b {
			return fmt.Errorf("%s has the classes %s to train on and %s to test on", dir, a, b)
		}
		d.test, tests = train.Samples{test.Texts(), test.Labels()}, test.Labels().Len()
	}
	d.classes, d.samples = set, train.Samples{set.Texts(), set.Labels()}
	c.Labels, c.Test = len(set.Names), d.test != nil
	fact(stderr, "data", "%d texts in %d classes, %d to test on (%s)", set.Labels().Len(), c.Labels, tests, d.words.Name())
	return nil
}

// feed gives the batches of a run of c.
func (d *dataset) feed(ctx context.Context, c train.Config) (train.Feed, error) {
	if c.Lengths > 0 {
		return d.byLength(ctx, c)
	}
	if d.samples != nil {
		l, err := train.NewLoaded(ctx, d.samples, c.Batch, c.Seed)
		if err == nil {
			d.closers = append([]func() error{func() error { l.Close(); return nil }}, d.closers...) // before the files it reads
		}
		return l, err
	}
	b, err := data.NewBatches(d.corpus, c.Batch, c.Seq, c.Seed)
	if err != nil {
		return nil, err
	}
	if c.Task == train.Hidden {
		return train.HiddenWords(data.NewMasked(b, d.words.mask)), nil
	}
	return train.Text(b), nil
}

// byLength gives batches of texts of similar length.
func (d *dataset) byLength(ctx context.Context, c train.Config) (train.Feed, error) {
	if d.classes == nil {
		documents, err := d.corpus.Documents(c.Seq)
		if err != nil {
			return nil, err
		}
		return train.NewByLength(documents, nil, c, d.words.pad)
	}
	texts, err := d.classes.Sequences(ctx)
	if err != nil {
		return nil, err
	}
	return train.NewByLength(texts, d.classes.Labels(), c, d.words.pad)
}
